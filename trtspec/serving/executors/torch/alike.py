"""Finds the matrices that are equal to the byte in two models, without loading either."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping

import numpy as np
import numpy.typing as npt

Bytes = npt.NDArray[np.uint8]
Read = Callable[[str], Bytes]
"""Returns the bytes of a tensor by its name, `[size]`; unused bytes need not be read from the disk."""

_PIECE = 4096
_CHUNK = 16 << 20


def alike(
    draft: Mapping[str, Hashable],
    read_draft: Read,
    target: Mapping[str, Hashable],
    read_target: Read,
    *,
    whole: bool,
) -> list[str]:
    """Returns the names of the draft's tensors that the target has too, under any name.

    Both map names to dtype and shape, which must be equal too. Without `whole` only the beginning, middle and
    end of a tensor are compared, which differ between trained weights.
    """
    named = defaultdict[Hashable, list[str]](list)
    for name, form in target.items():
        named[form].append(name)
    return [
        name
        for name, form in draft.items()
        if any(_same(read_draft(name), read_target(other), whole) for other in named.get(form, ()))
    ]


def _same(one: Bytes, other: Bytes, whole: bool) -> bool:
    middle = len(one) // 2
    pieces = (slice(_PIECE), slice(middle, middle + _PIECE), slice(-_PIECE, None))
    if not all(np.array_equal(one[piece], other[piece]) for piece in pieces):
        return False
    chunks = range(0, len(one) if whole else 0, _CHUNK)
    return all(np.array_equal(one[at : at + _CHUNK], other[at : at + _CHUNK]) for at in chunks)
