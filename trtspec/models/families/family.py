"""Defines the data with which a model family describes its checkpoint."""

from __future__ import annotations

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
    """Some rows of a Hugging Face tensor.

    Most tensors are one part; a tensor that stacks several matrices has a part for each.
    """

    name: str
    shape: tuple[int, ...]
    """The shape that the configuration demands."""
    split: Split = Split.WHOLE
    first: int = 0
    """The first of the rows."""

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
    """A TensorRT-LLM tensor: a rank's shares of its parts, stacked in order along the first dimension."""

    name: str
    """The name within the layer for a weight of a decoder layer."""
    parts: tuple[TensorPart, ...]
    layer: int | None = None
    """The layer's number in the whole model for a weight of a decoder layer. Pipeline ranks count their
    layers from zero.
    """
    linear: bool = False
    """True for a matrix that FP8 quantizes."""
    experts: int | None = None
    """The number of experts, with a matrix for each: [experts, out, in]. None for a weight of no experts."""
    dtype: str | None = None
    """The safetensors dtype of a weight that has the same dtype in every checkpoint."""
    shift: float = 0.0
    """The number that is added to each weight."""

    @property
    def matrices(self) -> tuple[tuple[TensorPart, ...], ...]:
        """The parts of each matrix; only a weight of experts has more than one matrix."""
        each = len(self.parts) // (self.experts or 1)
        return tuple(self.parts[first : first + each] for first in range(0, len(self.parts), each))

    @property
    def caches(self) -> tuple[str, str]:
        """The names that a calibration gives to the keys and values computed by this weight."""
        attention = self.parts[0].module.rpartition(".")[0]
        return f"{attention}.k_proj", f"{attention}.v_proj"


def shapes(weights: Iterable[FamilyTensor]) -> dict[str, tuple[int, ...]]:
    """The shape that the configuration demands of each Hugging Face tensor, all its parts together."""
    found: dict[str, tuple[int, ...]] = {}
    for part in (part for weight in weights for part in weight.parts):
        height = max(part.rows.stop, found.get(part.name, (0,))[0])
        found[part.name] = (height, *part.shape[1:])
    return found


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A key of TensorRT-LLM's `config.json` that identifies a family."""

    name: str
    _: KW_ONLY
    value: Any
    """The family's value."""
    default: Any
    """The value that TensorRT-LLM takes if the key is missing."""
    otherwise: str
    """The mistake that TensorRT-LLM makes with any other value."""


@dataclass(frozen=True, slots=True)
class ModelFamily:
    """All that trtspec knows about one family; other modules read these fields instead of comparing names.

    The fields from `swiglu` on describe TensorRT-LLM's class.
    """

    name: str
    """Hugging Face's `model_type`, by which transformers chooses what the model computes."""
    check: Callable[[Source], None]
    """Raises ModelError for a model that would be converted wrongly; so does `window`."""
    weights: Callable[[Sizes], Iterable[FamilyTensor]]
    """Lists the family's tensors in layer order."""
    config: Callable[[Source], dict[str, Any]]
    """Makes the keys that only this family's `config.json` has."""
    keys: tuple[ConfigKey, ...] = ()
    """The keys of `config.json` that identify this family."""
    needs: tuple[str, ...] = ()
    """The keys of `config.json` without which TensorRT-LLM would build another family's model."""
    window: Callable[[Source], int | None] = lambda _: None
    """The number of tokens that a token attends to, including itself; None for all."""
    alternates: bool = False
    """True if only some layers have that window."""
    experts: bool = False
    """True if experts replace every layer's MLP."""
    swiglu: bool = True
    """True if its MLP has a gated SiLU."""
    fused_gate: bool = False
    """True if it stacks the two matrices before the activation."""
    norms_heads: bool = False
    """True if it normalizes q and k."""
    pipelines: bool = True
    """True if it can be divided among pipeline ranks."""
    reduce_fusion: bool = False
    """True if the build option `reduce_fusion` has an effect."""
