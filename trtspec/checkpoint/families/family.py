"""What a model family says of its checkpoint, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoint.source import Source


@dataclass(frozen=True, slots=True)
class Part:
    """A Hugging Face tensor, with the shape that the model's configuration demands."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A TensorRT-LLM tensor: its parts stacked along the first dimension, in this order."""

    name: str
    parts: tuple[Part, ...]

    @property
    def shape(self) -> tuple[int, ...]:
        return (sum(part.shape[0] for part in self.parts), *self.parts[0].shape[1:])


@dataclass(frozen=True, slots=True)
class Family:
    """One family: what it refuses, its tensors in layer order, and the keys that only its config has.

    `ignored` matches Hugging Face tensors that carry no weight of the model and may be left out.
    """

    name: str
    check: Callable[[Source], None]
    weights: Callable[[Source], Iterable[Weight]]
    config: Callable[[Source], dict[str, Any]]
    ignored: re.Pattern[str]
