"""The options of a conversion, and which share of each weight each rank has; pure.

The ranks are those of TensorRT-LLM's `Mapping`, with tensor and pipeline parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import isqrt, prod

from trtspec.base.findings import Finding
from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.models.families import FAMILIES
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.sizes import Sizes

_FP8_UNIT = 16  # cuBLASLt's FP8 products need both sides of a weight to be multiples of it


@dataclass(frozen=True, slots=True)
class Mapping:
    """The parallelism of a model.

    The rank is `pp_rank * tp_size + tp_rank`, as in TensorRT-LLM's `mapping.py` without context parallelism.
    """

    tp_size: int = 1
    """The number of ranks that share each layer."""
    pp_size: int = 1
    """The number of such groups of ranks, which share the layers."""

    @property
    def world_size(self) -> int:
        return self.tp_size * self.pp_size

    def layers(self, pp_rank: int, num_layers: int) -> range:
        """The layers of a pipeline rank, cut as by `torch.tensor_split`: the first may have one more each."""
        each, more = divmod(num_layers, self.pp_size)
        first = pp_rank * each + min(pp_rank, more)
        return range(first, first + each + (pp_rank < more))


def misfit(sizes: Sizes, mapping: Mapping, *, fp8: bool) -> Finding | None:
    """Returns why the model cannot be split over these ranks; None if it can. It reads no weights.

    The subject is the key to change, within the model's section of the recipe.
    """
    layers, has_pipelines = sizes.num_hidden_layers, FAMILIES[sizes.architecture].pipelines
    if mapping.pp_size > 1 and not has_pipelines:
        problem = f"TensorRT-LLM's {sizes.architecture} has no pipeline ranks"
        return Finding("parallel.pipeline", problem, "at most 1")
    if mapping.pp_size > layers:
        problem = f"{mapping.pp_size} pipeline ranks exceed the model's {layers} layers"
        return Finding("parallel.pipeline", problem, f"at most {layers}")
    flaw = _flaw(sizes, mapping.tp_size, fp8=fp8)
    if flaw is None:
        return None
    all_sizes = _divisors(sizes.num_attention_heads)
    if fitting := [size for size in all_sizes if _flaw(sizes, size, fp8=fp8) is None]:
        return Finding("parallel.tensor", flaw, f"use {_either(fitting)}")
    plain = [size for size in all_sizes if _flaw(sizes, size, fp8=False) is None]
    if mapping.tp_size in plain:
        return Finding("quantization.weights", flaw, "leave quantization out")
    if plain:
        return Finding("parallel.tensor", flaw, f"use {_either(plain)}, and leave quantization out")
    return Finding("model", flaw, "use another model")


def _either(sizes: list[int]) -> str:
    *some, last = map(str, sizes)
    return " or ".join(filter(None, [", ".join(some), last]))


def _divisors(number: int) -> list[int]:
    low = [size for size in range(1, isqrt(number) + 1) if number % size == 0]
    return sorted({*low, *(number // size for size in low)})


def _flaw(sizes: Sizes, tp_size: int, *, fp8: bool) -> str | None:
    heads, kv_heads = sizes.num_attention_heads, sizes.num_key_value_heads
    if heads % tp_size:
        return f"{heads} attention heads cannot be divided among {tp_size} ranks"
    if kv_heads % tp_size and tp_size % kv_heads:
        return (
            f"{kv_heads} key-value heads do not divide among {tp_size} ranks, nor {tp_size} ranks among them"
        )
    for name, width in sizes.mlps.items():
        if width % tp_size:
            return f"{name} {width} cannot be divided among {tp_size} ranks"
    own, own_kv = heads // tp_size, max(kv_heads // tp_size, 1)
    if own == own_kv and FAMILIES[sizes.architecture].norms_heads:
        # `Attention` of TensorRT-LLM's layers/attention.py then takes q, k and v as if they were interleaved.
        alike = f"a rank has as many query heads as key-value heads, {own}"
        return f"{alike}, which TensorRT-LLM confuses when it normalizes q and k"
    rows = {
        "hidden_size": sizes.hidden_size,
        "the query rows of a rank": own * sizes.head_size,
        "the query, key and value rows of a rank": (own + 2 * own_kv) * sizes.head_size,
        **{f"{name} of a rank": width // tp_size for name, width in sizes.mlps.items()},
    }
    odd = next((name for name, size in rows.items() if size % _FP8_UNIT), None)
    if fp8 and odd:
        return f"{odd}: {rows[odd]} is not a multiple of {_FP8_UNIT}, which FP8 matrix products need"
    return None


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of a conversion."""

    dtype: str
    """The dtype of everything that is not quantized: `float32`, `float16` or `bfloat16`."""
    mapping: Mapping = field(default_factory=Mapping)
    fp8: bool = False
    """Quantizes weights and activations."""
    fp8_kv_cache: bool = False
    """Quantizes the KV cache too."""
    calibration: CalibratedRanges | None = None
    """None if nothing is quantized, and for an FP8 model, which has its own scales."""


EMBEDDING = "transformer.vocab_embedding.weight"


@dataclass(frozen=True, slots=True)
class TensorShare:
    """A rectangle of a Hugging Face tensor, which one rank's tensor has.

    In a tensor with one dimension each number is a row with one column.
    """

    rows: range
    columns: range
    """The rows and columns of the rectangle."""
    at: int
    """The row of the rank's tensor at which the rectangle begins."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A TensorRT-LLM tensor on one rank; the rows that no share covers are zero."""

    stem: str
    """The beginning of its name, with its layer's number on this pipeline rank; empty outside of layers."""
    name: str
    shape: tuple[int, ...]
    shares: tuple[TensorShare, ...]
    """The share of each part of the weight."""


def place(weight: FamilyTensor, sizes: Sizes, mapping: Mapping, rank: int) -> Placed | None:
    """Returns the tensor that a rank has of a weight; None if another pipeline rank has it.

    The embedding is on the first pipeline rank; the final norm and the head are on the last.
    """
    pp_rank, tp_rank = divmod(rank, mapping.tp_size)
    layers = mapping.layers(pp_rank, sizes.num_hidden_layers)
    edge = 0 if weight.name == EMBEDDING else mapping.pp_size - 1
    if not (pp_rank == edge if weight.layer is None else weight.layer in layers):
        return None
    shares, at, columns = [], 0, range(0)
    for part in weight.parts:
        rows, columns, height = _rectangle(part, sizes.head_size, mapping.tp_size, tp_rank)
        shares.append(TensorShare(rows, columns, at))
        at += height
    shape: tuple[int, ...] = (at,) if len(weight.parts[0].shape) == 1 else (at, len(columns))
    if weight.experts is not None:
        shape = (weight.experts, at // weight.experts, len(columns))
    stem = "" if weight.layer is None else f"transformer.layers.{weight.layer - layers.start}."
    return Placed(stem, stem + weight.name, shape, tuple(shares))


def placed_on_ranks(weight: FamilyTensor, sizes: Sizes, mapping: Mapping) -> dict[int, Placed]:
    """Returns the tensors of a weight, by the ranks that have it."""
    found = ((rank, place(weight, sizes, mapping, rank)) for rank in range(mapping.world_size))
    return {rank: placed for rank, placed in found if placed}


def _rectangle(part: TensorPart, head_size: int, tp_size: int, tp_rank: int) -> tuple[range, range, int]:
    """The rows and columns of a rank's share, and the height of its place on the rank, zero rows included."""
    height, width = part.shape[0], prod(part.shape[1:])
    rows, columns = part.rows, range(width)
    match part.split:
        case Split.WHOLE:
            return rows, columns, height
        case Split.ROWS:
            each = height // tp_size
            return rows[tp_rank * each :][:each], columns, each
        case Split.COLUMNS:
            each = width // tp_size
            return rows, columns[tp_rank * each :][:each], height
        case Split.VOCAB:
            each = -(-height // tp_size)
            return rows[tp_rank * each :][:each], columns, each
        case Split.HEADS:
            heads = height // head_size
            first, each = tp_rank * heads // tp_size, max(heads // tp_size, 1)
            return rows[first * head_size :][: each * head_size], columns, each * head_size
