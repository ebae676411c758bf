"""What a model family says of its checkpoint, as data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from trtspec.checkpoint.source import Source


class Split(Enum):
    """How the tensor-parallel ranks share a Hugging Face tensor."""

    WHOLE = auto()  # every rank has all of it
    ROWS = auto()  # equal shares of the first dimension
    COLUMNS = auto()  # equal shares of the second dimension
    HEADS = auto()  # shares of whole heads; with more ranks than heads, neighbours have the same head
    VOCAB = auto()  # shares of the first dimension, which zero rows fill up to a multiple of the ranks


@dataclass(frozen=True, slots=True)
class Part:
    """A Hugging Face tensor, with the shape that the model's configuration demands."""

    name: str
    shape: tuple[int, ...]
    split: Split = Split.WHOLE

    @property
    def module(self) -> str:
        """The Hugging Face module whose weight it is."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class Weight:
    """A TensorRT-LLM tensor: a rank's shares of its parts, stacked along the first dimension in this order.

    A weight of a decoder layer has that layer's number in the whole model, and a `name` within the layer;
    pipeline ranks count their layers from zero. `linear` is a matrix that FP8 quantizes.
    """

    name: str
    parts: tuple[Part, ...]
    layer: int | None = None
    linear: bool = False

    def name_from(self, first_layer: int) -> str:
        """The tensor's name where `first_layer` is layer 0."""
        if self.layer is None:
            return self.name
        return f"transformer.layers.{self.layer - first_layer}.{self.name}"


@dataclass(frozen=True, slots=True)
class Family:
    """One family: what it refuses, its tensors in layer order, and the keys that only its config has.

    `name` is Hugging Face's `model_type`, by which transformers chooses what the model computes.
    `ignored` matches Hugging Face tensors that carry no weight of the model and may be left out.
    """

    name: str
    check: Callable[[Source], None]
    weights: Callable[[Source], Iterable[Weight]]
    config: Callable[[Source], dict[str, Any]]
    ignored: re.Pattern[str]
