"""Plain data by which a model family describes its checkpoint."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from enum import Enum, auto
from typing import Any

from trtspec.models.sizes import Sizes
from trtspec.models.source import Source


class Split(Enum):
    """The way in which tensor-parallel ranks share a Hugging Face tensor."""

    WHOLE = auto()  # every rank has all of it
    ROWS = auto()  # equal shares of the first dimension
    COLUMNS = auto()  # equal shares of the second dimension
    HEADS = auto()  # shares of whole heads; with more ranks than heads, neighbours have the same head
    VOCAB = auto()  # shares of the first dimension, which zero rows fill up to a multiple of the ranks


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The rows of a Hugging Face tensor from `first` on, with the shape that the configuration demands.

    Most tensors are one part; a tensor that stacks several matrices has a part for each.
    """

    name: str
    shape: tuple[int, ...]
    split: Split = Split.WHOLE
    first: int = 0

    @property
    def rows(self) -> range:
        """The numbers of these rows within the tensor."""
        return range(self.first, self.first + self.shape[0])

    @property
    def module(self) -> str:
        """The Hugging Face module whose weight it is."""
        return self.name.rpartition(".")[0]


@dataclass(frozen=True, slots=True)
class FamilyTensor:
    """A TensorRT-LLM tensor: a rank's shares of its parts, stacked along the first dimension in this order.

    A weight of a decoder layer has that layer's number in the whole model, and a `name` within the layer;
    pipeline ranks count their layers from zero. `linear` says whether it is a matrix that FP8 quantizes.
    A weight of `experts` is a matrix for each of so many, [experts, out, in]. `dtype`, by its safetensors
    name, is that of a weight which is stored in the same dtype in every checkpoint. `shift` is added to each
    number.
    """

    name: str
    parts: tuple[TensorPart, ...]
    layer: int | None = None
    linear: bool = False
    experts: int | None = None
    dtype: str | None = None
    shift: float = 0.0

    @property
    def matrices(self) -> tuple[tuple[TensorPart, ...], ...]:
        """The parts of each matrix, of which only a weight of experts has more than one."""
        each = len(self.parts) // (self.experts or 1)
        return tuple(self.parts[first : first + each] for first in range(0, len(self.parts), each))

    @property
    def caches(self) -> tuple[str, str]:
        """The names in a calibration of the keys and values that this weight computes, stacked or not."""
        attention = self.parts[0].module.rpartition(".")[0]
        return f"{attention}.k_proj", f"{attention}.v_proj"

    def name_from(self, first_layer: int) -> str:
        """The tensor's name on a pipeline rank, which counts layers from the model's `first_layer`."""
        if self.layer is None:
            return self.name
        return f"transformer.layers.{self.layer - first_layer}.{self.name}"


def shapes(weights: Iterable[FamilyTensor]) -> dict[str, tuple[int, ...]]:
    """The shape that the configuration demands of each Hugging Face tensor, all its parts together."""
    found: dict[str, tuple[int, ...]] = {}
    for part in (part for weight in weights for part in weight.parts):
        height = max(part.rows.stop, found.get(part.name, (0,))[0])
        found[part.name] = (height, *part.shape[1:])
    return found


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of TensorRT-LLM's `config.json` that tells a family from others, with the family's `value`.

    `default` is what TensorRT-LLM takes if the key is missing; `otherwise` is what it does wrong with any
    other value.
    """

    name: str
    _: KW_ONLY
    value: Any
    default: Any
    otherwise: str


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """All that trtspec knows of one family; other modules read these fields instead of comparing names.

    `name` is Hugging Face's `model_type`, by which transformers chooses what the model computes. `check`
    raises ModelError for a model that would be converted wrongly. `weights` are its tensors in layer order,
    `config` and `keys` what only its `config.json` has. `ignored` matches Hugging Face tensors that carry no
    weight of the model and may be left out. `window` is how many tokens a token attends to, itself counted;
    None for all. `alternates` is true if only some layers have that window. `original` is how many tokens a
    text may have before its positions turn otherwise; None if they never do. `experts` is true if they stand
    in place of every layer's MLP.

    The other fields describe TensorRT-LLM's class: `swiglu` is true if its MLP has a gated SiLU, `fused_gate`
    if the two matrices before the activation are one there, `norms_heads` if it normalizes q and k,
    `pipelines` if it can be divided among pipeline ranks, and `reduce_fusion` if the build option of this
    name has an effect.
    """

    name: str
    check: Callable[[Source], None]
    weights: Callable[[Sizes], Iterable[FamilyTensor]]
    config: Callable[[Source], dict[str, Any]]
    ignored: re.Pattern[str]
    keys: tuple[ConfigKey, ...] = ()
    window: Callable[[Source], int | None] = lambda _: None
    alternates: bool = False
    original: Callable[[Source], int | None] = lambda _: None
    experts: bool = False
    swiglu: bool = True
    fused_gate: bool = False
    norms_heads: bool = False
    pipelines: bool = True
    reduce_fusion: bool = False
