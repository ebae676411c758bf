"""Proves that a checkpoint is its model: the ranks are put together again and compared with the original.

This module has its own rules for how ranks are put together. It takes none from `place`, so it finds mistakes
there. FP8 numbers must equal, byte for byte, the original quantized with its scale.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from trtspec.base.errors import TensorError
from trtspec.base.threads import in_threads
from trtspec.checkpoint.blueprint import Blueprint, PlannedWeight, draw, shape_of
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.tensors import Caster, Reader, chunks
from trtspec.models.families.family import FamilyTensor, Split, TensorPart
from trtspec.models.source import Source, Tensor, read_header, read_json

CHUNK = 1 << 20  # bytes
FORMAT = 1  # version of what is proven: raised when it becomes more
CONVERT_AGAIN = "remove the folder and convert again"


@dataclass(frozen=True, slots=True)
class _Claim:
    """A rectangle of an original that must stand in a rank's tensor."""

    held: Tensor
    at: int
    """The row of the rank's tensor from which on it must stand."""
    rows: range
    """The rows of the original."""
    columns: range
    """The columns of the original."""
    original: Tensor | None
    """None if the rows must be zero."""
    cast: Caster


def verify(
    source: Source,
    options: ConvertOptions,
    folder: Path,
    advance: Callable[[int], None] = lambda _: None,
    draft: EngineDraft | None = None,
) -> None:
    """Compares a checkpoint with its model; raises TensorError for what is missing, superfluous or different.

    `advance` is called with the number of bytes of the checkpoint after each piece. Raises ModelError for a
    model that cannot be converted.
    """
    blueprint = draw(source, options, draft)
    _check_config(blueprint, folder / "config.json")
    files = [folder / f"rank{rank}.safetensors" for rank in range(options.mapping.world_size)]
    ranks = _Ranks(files, options.mapping.tp_size)
    originals = {part.tensor.file for planned in blueprint.weights for part in planned.parts}
    with Reader(originals) as original, Reader(files) as held:
        claims = _claims(blueprint, ranks, held, source.head_size)
        in_threads(partial(_compare, original, held), _pieces(claims), advance)
    ranks.check_empty()


class _Ranks:
    """The tensors of all ranks that have not been taken yet."""

    def __init__(self, files: list[Path], tp_size: int) -> None:
        missing = next((file for file in files if not file.is_file()), None)
        if missing:
            raise TensorError(missing, "is missing", CONVERT_AGAIN)
        self._left = [read_header(file) for file in files]
        self._files = files
        stages = range(0, len(files), tp_size)
        self._stages = [range(first, first + tp_size) for first in stages]
        # Pipeline ranks count their layers from zero, so the layers of all ranks before are to be subtracted.
        self._depths = [_depth(self._left[first]) for first in stages]

    def take(self, name: str, layer: int | None) -> list[Tensor]:
        """Removes the tensors of one weight and returns them, in the order of the tensor-parallel ranks.

        Raises TensorError if one is missing.
        """
        if layer is None:
            found = [ranks for ranks in self._stages if name in self._left[ranks[0]]]
            ranks = found[0] if found else self._stages[-1]
        else:
            stage = 0
            while stage + 1 < len(self._stages) and layer >= self._depths[stage]:
                layer, stage = layer - self._depths[stage], stage + 1
            name, ranks = f"transformer.layers.{layer}.{name}", self._stages[stage]
        absent = next((rank for rank in ranks if name not in self._left[rank]), None)
        if absent is not None:
            raise TensorError(self._files[absent], f"{name}: this tensor is missing", CONVERT_AGAIN)
        return [self._left[rank].pop(name) for rank in ranks]

    def check_empty(self) -> None:
        """Raises TensorError for a tensor that was not taken: it is none of the model's."""
        for file, tensors in zip(self._files, self._left, strict=True):
            if tensors:
                problem = f"{next(iter(tensors))}: the model has no such tensor"
                raise TensorError(file, problem, CONVERT_AGAIN)


def _depth(tensors: dict[str, Tensor]) -> int:
    return len({name.split(".")[2] for name in tensors if name.startswith("transformer.layers.")})


def _check_config(blueprint: Blueprint, file: Path) -> None:
    found = read_json(file)
    for key in blueprint.config.keys() | found.keys():
        if found.get(key) != blueprint.config.get(key):
            problem = f"{key} is {found.get(key)!r}, not {blueprint.config.get(key)!r}"
            raise TensorError(file, problem, CONVERT_AGAIN)


def _claims(blueprint: Blueprint, ranks: _Ranks, held: Reader, head_size: int) -> Iterator[_Claim]:
    for planned in blueprint.weights:
        weight = planned.weight
        tensors = [_flat(weight, tensor) for tensor in ranks.take(weight.name, weight.layer)]
        ends, claims = [0] * len(tensors), []
        for part, of_part in zip(weight.parts, planned.parts, strict=True):
            original, cast = of_part.tensor, of_part.cast()
            for rank, (rows, columns) in enumerate(_put_together(part, tensors, head_size)):
                tensor, at = tensors[rank], ends[rank]
                known = range(rows.start, min(rows.stop, part.rows.stop))
                zeros = range(len(rows) - len(known))
                claims.append(_Claim(tensor, at, known, columns, original, cast))
                claims.append(_Claim(tensor, at + len(known), zeros, columns, None, cast))
                ends[rank] += len(rows)
                if tensor.shape[1:] not in ((), (len(columns),)):
                    raise _unlike(tensor, f"has shape {list(tensor.shape)}, not {len(columns)} columns")
        for tensor, end in zip(tensors, ends, strict=True):
            if tensor.shape[0] != end:
                raise _unlike(tensor, f"has shape {list(tensor.shape)}, not {end} rows")
            if tensor.dtype != planned.dtype:
                raise _unlike(tensor, f"has dtype {tensor.dtype}, not {planned.dtype}")
        _check_scales(planned, ranks, held)
        yield from claims


def _flat(weight: FamilyTensor, tensor: Tensor) -> Tensor:
    """The tensor as one matrix: the rows of all experts, one after another."""
    if weight.experts is None:
        return tensor
    if len(tensor.shape) != 3 or tensor.shape[0] != weight.experts:
        raise _unlike(tensor, f"has shape {list(tensor.shape)}, not a matrix for each of {weight.experts}")
    return replace(tensor, shape=(tensor.shape[0] * tensor.shape[1], tensor.shape[2]))


def _put_together(part: TensorPart, tensors: list[Tensor], head_size: int) -> Iterator[tuple[range, range]]:
    """Yields for each rank the rows and columns of the original that its tensor has next.

    Rows beyond the original's last stand for zeros.
    """
    height, width, ranks = part.shape[0], prod(part.shape[1:]), len(tensors)
    if part.split is Split.WHOLE:
        yield from [(part.rows, range(width))] * ranks
    elif part.split is Split.COLUMNS:
        for rank in range(ranks):
            yield part.rows, range(rank * width // ranks, (rank + 1) * width // ranks)
    else:
        alike = max(ranks * head_size // height, 1) if part.split is Split.HEADS else 1
        each = -(-height * alike // ranks)
        for rank in range(ranks):
            first = part.first + rank // alike * each
            yield range(first, first + each), range(width)


def _check_scales(planned: PlannedWeight, ranks: _Ranks, held: Reader) -> None:
    for name, scales in planned.scales.items():
        for tensor in ranks.take(name, planned.weight.layer):
            if (tensor.dtype, tensor.shape) != ("F32", shape_of(scales)):
                expected = list(shape_of(scales))
                raise _unlike(tensor, f"is {tensor.dtype} {list(tensor.shape)}, not F32 {expected}")
            for row, scale in enumerate(scales):
                found = float(held.rows(tensor, range(row, row + 1))[0, 0])
                if found != scale:
                    raise _unlike(tensor, f"is {found:g}, not {scale:g}")


def _pieces(claims: Iterator[_Claim]) -> Iterator[_Claim]:
    for claim in claims:
        for rows in chunks(claim.rows, claim.held, CHUNK):
            yield replace(claim, at=claim.at + rows.start - claim.rows.start, rows=rows)


def _compare(original: Reader, held: Reader, claim: _Claim) -> int:
    """Compares a claim bit by bit, NaNs too; returns the bytes compared, or raises TensorError."""
    found = held.rows(claim.held, range(claim.at, claim.at + len(claim.rows)))
    expected = np.zeros_like(found)
    if claim.original:
        rows = original.rows(claim.original, claim.rows)
        expected = claim.cast(rows[:, claim.columns.start : claim.columns.stop])
    bits = f"u{found.itemsize}"
    wrong = np.flatnonzero((found.view(bits) != expected.view(bits)).any(axis=1))
    if wrong.size:
        row, name = claim.rows.start + int(wrong[0]), claim.original.name if claim.original else "zero"
        raise _unlike(claim.held, f"row {claim.at + int(wrong[0])} is not row {row} of {name}")
    return found.nbytes


def _unlike(tensor: Tensor, problem: str) -> TensorError:
    return TensorError(tensor.file, f"{tensor.name}: {problem}", CONVERT_AGAIN)
