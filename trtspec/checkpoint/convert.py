"""Converts a Hugging Face model to a TensorRT-LLM unified checkpoint.

That is a folder with `config.json`, and with `rank<N>.safetensors` for each rank.

Every tensor is read once, in pieces and in the order of its file; each piece is written to every rank that
has a share of it. So memory does not grow with the model, and a disk reads in one direction.
"""

from __future__ import annotations

import json
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trtspec.base.errors import TensorError, UnavailableError
from trtspec.base.threads import in_threads
from trtspec.base.units import lacking
from trtspec.checkpoint.blueprint import Blueprint
from trtspec.checkpoint.cast import DTYPES, FP8, Caster
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.checkpoint.inside import DraftInside, draw_whole
from trtspec.checkpoint.placement import Placed, TensorShare, place
from trtspec.checkpoint.reader import Reader, chunks
from trtspec.checkpoint.writer import SafetensorsFile, TensorEntry
from trtspec.models.families import family_of
from trtspec.models.families.family import FamilyTensor, TensorPart
from trtspec.models.source import Source, Tensor

CHUNK = 1 << 20  # bytes; the casts of a piece this small stay in the processor's cache
FORMAT = 3  # version of what is written: raised when the same source and options give other bytes


@dataclass(frozen=True, slots=True)
class _Target:
    """The position at which a share is written."""

    share: TensorShare
    file: SafetensorsFile
    start: int
    """The byte of the file at which its tensor begins."""


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a Hugging Face tensor, and every position to which they are written."""

    tensor: Tensor
    rows: range
    cast: Caster
    targets: tuple[_Target, ...]


def convert(
    source: Source,
    options: ConvertOptions,
    folder: Path,
    advance: Callable[[int], None] = lambda _: None,
    inside: DraftInside | None = None,
) -> None:
    """Writes a model's checkpoint into `folder`, which must not exist; the same source gives the same bytes.

    Nothing is written before every tensor's presence, dtype and shape has been checked. `advance` is called
    with the number of bytes after each piece. Raises what `draw_whole` raises, and UnavailableError if the
    disk has no room.
    """
    blueprint = draw_whole(source, options, inside)
    entries = [blueprint.entries(rank) for rank in range(len(blueprint.ranks))]
    folder.mkdir(parents=True)
    _check_space(folder, sum(entry.size for rank in entries for entry in rank))
    config = json.dumps(blueprint.config, indent=4) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    with ExitStack() as stack:
        files = [
            stack.enter_context(SafetensorsFile(folder / f"rank{rank}.safetensors", held))
            for rank, held in enumerate(entries)
        ]
        reader = stack.enter_context(Reader({tensor.file for tensor in blueprint.tensors.values()}))
        _write_scales(blueprint, files)
        in_threads(partial(_copy, reader, blueprint.config["dtype"]), _pieces(blueprint, files), advance)


def checkpoint_size(source: Source, options: ConvertOptions, inside: DraftInside | None = None) -> int:
    """Bytes of all weights on all ranks, the sum of what `convert` calls `advance` with."""
    return sum(rank_sizes(source, options, inside))


def rank_sizes(source: Source, options: ConvertOptions, inside: DraftInside | None = None) -> list[int]:
    """Bytes of the weights on each rank, without the scales of FP8."""
    weights, mapping = list(family_of(source).weights(source)), options.mapping
    weights += inside.weights() if inside else ()
    dtype = DTYPES[options.dtype]

    def size(tensor: Placed) -> int:
        stored = FP8 if options.fp8 and tensor.weight.linear else tensor.weight.dtype or dtype
        return TensorEntry(tensor.name, stored, tensor.shape).size

    return [sum(map(size, place(weights, source, mapping, rank))) for rank in range(mapping.world_size)]


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        problem = f"the disk is full: the checkpoint needs {lacking(needed, free)}"
        raise UnavailableError(folder.parent, problem, "free some space, or choose another --output")


def _write_scales(blueprint: Blueprint, files: Iterable[SafetensorsFile]) -> None:
    for file, rank in zip(files, blueprint.ranks, strict=True):
        for placed in rank:
            for name, scales in blueprint.scales_beside(placed).items():
                file.write(np.array(scales, "<f4").tobytes(), file.starts[name])


def _pieces(blueprint: Blueprint, files: Iterable[SafetensorsFile]) -> Iterator[_Piece]:
    targets: dict[tuple[FamilyTensor, TensorPart], list[_Target]] = defaultdict(list)
    for file, rank in zip(files, blueprint.ranks, strict=True):
        for placed in rank:
            for share in placed.shares:
                start = file.starts[placed.name]
                targets[placed.weight, share.part].append(_Target(share, file, start))
    tensors = {key: blueprint.tensors[key[1].name] for key in targets}
    for key in sorted(targets, key=lambda key: (tensors[key].file, tensors[key].start, key[1].first)):
        cast = blueprint.caster(*key)
        tensor = tensors[key]
        for rows in chunks(key[1].rows, tensor, CHUNK):
            yield _Piece(tensor, rows, cast, tuple(targets[key]))


def _copy(reader: Reader, dtype: str, piece: _Piece) -> int:
    """Writes a piece to its positions, and returns the number of bytes.

    Raises TensorError for a number that is not finite, or too large for `dtype`.
    """
    try:
        numbers = piece.cast(reader.finite_rows(piece.tensor, piece.rows))
    except OverflowError as error:
        problem = f"{piece.tensor.name}: holds {error.args[0]:g}, too large for {dtype}"
        raise TensorError(piece.tensor.file, problem, "choose dtype: bfloat16 in the recipe") from error
    written = 0
    for target in piece.targets:
        rows, columns = target.share.rows, target.share.columns
        first, last = max(rows.start, piece.rows.start), min(rows.stop, piece.rows.stop)
        if first >= last:
            continue
        block = numbers[first - piece.rows.start : last - piece.rows.start, columns.start : columns.stop]
        row = target.share.at + first - rows.start
        start = target.start + row * len(columns) * numbers.itemsize
        target.file.write(np.ascontiguousarray(block).data, start)
        written += block.nbytes
    return written
