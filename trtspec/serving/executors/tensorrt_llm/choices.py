"""Trees of tokens that Medusa's heads propose, as NVIDIA's parameter `medusa_choices` has them.

A path has a rank for each head that it uses: (0, 2) is the likeliest token of the first head, and then the
third likeliest of the second. A tree has the beginnings of its paths too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

Choices = tuple[tuple[int, ...], ...]
_PATH = r"\{\d{1,4}(?:, ?\d{1,4})*\}"
_TREE = re.compile(rf"{_PATH}(?:, ?{_PATH})*")


def as_parameter(choices: Iterable[Iterable[int]]) -> str:
    """Returns the text that the C++ backend reads (`csvStrToVecVecInt` of its `src/utils.cc`)."""
    return ", ".join(f"{{{', '.join(map(str, path))}}}" for path in choices)


def read_choices(text: str) -> Choices:
    """Reads such a text; raises ValueError for another."""
    if not _TREE.fullmatch(text):
        raise ValueError(text)
    return tuple(tuple(map(int, path.split(","))) for path in re.findall(r"\{(.*?)\}", text))
