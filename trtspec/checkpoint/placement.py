"""Computes which share of each weight each rank has; pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod

from trtspec.checkpoint.convert_options import Mapping
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.sizes import Sizes

EMBEDDING = "transformer.vocab_embedding.weight"


@dataclass(frozen=True, slots=True)
class TensorShare:
    """A rectangle of a Hugging Face tensor, which one rank's tensor has.

    In a tensor with one dimension each number is a row with one column.
    """

    part: TensorPart
    """The tensor, as Hugging Face has it."""
    rows: range
    columns: range
    """The rows and columns of the rectangle."""
    at: int
    """The row of the rank's tensor at which the rectangle begins."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A TensorRT-LLM tensor on one rank; the rows that no share covers are zero."""

    weight: FamilyTensor
    name: str
    shape: tuple[int, ...]
    shares: tuple[TensorShare, ...]


def place(weights: Iterable[FamilyTensor], sizes: Sizes, mapping: Mapping, rank: int) -> Iterator[Placed]:
    """Yields the tensors of one rank, in the order of the weights.

    The embedding is on the first pipeline rank; the final norm and the head are on the last.
    """
    pp_rank, tp_rank = divmod(rank, mapping.tp_size)
    layers = mapping.layers(pp_rank, sizes.num_hidden_layers)
    for weight in weights:
        edge = 0 if weight.name == EMBEDDING else mapping.pp_size - 1
        if pp_rank == edge if weight.layer is None else weight.layer in layers:
            yield _placed(weight, layers.start, sizes.head_size, mapping.tp_size, tp_rank)


def _placed(weight: FamilyTensor, first_layer: int, head_size: int, tp_size: int, tp_rank: int) -> Placed:
    shares, at, columns = [], 0, range(0)
    for part in weight.parts:
        rows, columns, height = _rectangle(part, head_size, tp_size, tp_rank)
        shares.append(TensorShare(part, rows, columns, at))
        at += height
    shape: tuple[int, ...] = (at,) if len(weight.parts[0].shape) == 1 else (at, len(columns))
    if weight.experts is not None:
        shape = (weight.experts, at // weight.experts, len(columns))
    return Placed(weight, weight.name_from(first_layer), shape, tuple(shares))


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
