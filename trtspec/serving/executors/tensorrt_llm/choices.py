"""Trees of draft tokens from heads inside an engine, in the form of NVIDIA's parameter `medusa_choices`.

A path has a rank for each head that it uses: (0, 2) is the likeliest token of the first head, and then the
third likeliest of the second. A tree has the prefixes of its paths too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trtspec.serving.executors.tensorrt_llm.runtime_draft import RuntimeDraft

Choices = tuple[tuple[int, ...], ...]
_PATH = r"\{\d{1,4}(?:, ?\d{1,4})*\}"
_TREE = re.compile(rf"{_PATH}(?:, ?{_PATH})*")


@dataclass(frozen=True, slots=True)
class ChoicesTree(RuntimeDraft):
    """A draft that is a tree of fixed paths."""

    choices: Choices

    @property
    def num_drafted(self) -> int:
        return len(self.choices)

    @property
    def paths(self) -> list[list[int]]:
        """The paths in the form of the bindings."""
        return [list(path) for path in self.choices]

    def __str__(self) -> str:
        return as_parameter(self.choices)

    def parameters(self) -> dict[str, str]:
        return {self.key: str(self)}


def as_parameter(choices: Iterable[Iterable[int]]) -> str:
    """Returns the paths in the form of the C++ backend (`csvStrToVecVecInt` of its `src/utils.cc`)."""
    return ", ".join(f"{{{', '.join(map(str, path))}}}" for path in choices)


def read_choices(text: str) -> Choices:
    """Returns the paths in such a text; raises `ValueError` for another."""
    if not _TREE.fullmatch(text):
        raise ValueError(text)
    return tuple(tuple(map(int, path.split(","))) for path in re.findall(r"\{(.*?)\}", text))
