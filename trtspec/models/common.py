"""Finds what two models share, such as a target and a draft that is some of its layers."""

from __future__ import annotations

from functools import cache

import numpy as np

from trtspec.models.headers_only import is_headers_only
from trtspec.models.source import Source
from trtspec.serving.executors.torch.alike import Bytes, Read, alike


def num_common(target: Source, draft: Source) -> int:
    """Returns how many numbers of the draft's matrices the target has too; 0 where weights are not here.

    It looks at a few kilobytes of each.
    """
    if target.folder != draft.folder and (is_headers_only(target) or is_headers_only(draft)):
        return 0
    common = alike(_forms(draft), _reader(draft), _forms(target), _reader(target), whole=False)
    return sum(draft.tensors[name].elements for name in common)


def _forms(source: Source) -> dict[str, tuple[str, tuple[int, ...]]]:
    tensors = source.tensors.items()
    return {name: (tensor.dtype, tensor.shape) for name, tensor in tensors if len(tensor.shape) > 1}


def _reader(source: Source) -> Read:
    @cache
    def read(name: str) -> Bytes:
        tensor = source.tensors[name]
        return np.memmap(tensor.file, np.uint8, "r", tensor.start, (tensor.end - tensor.start,))

    return read
