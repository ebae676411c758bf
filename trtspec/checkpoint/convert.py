"""Converts a Hugging Face model to a TensorRT-LLM unified checkpoint.

That is a folder with `config.json`, and with `rank<N>.safetensors` for each rank.

Every tensor is read once, in pieces and in the order of its file; each piece is written to every rank that
has a share of it. So memory does not grow with the model, and a disk reads in one direction.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from trtspec.base.errors import TensorError, UnavailableError
from trtspec.base.threads import in_threads
from trtspec.base.units import lacking
from trtspec.checkpoint.blueprint import PlannedPart, draw
from trtspec.checkpoint.convert_options import ConvertOptions, placed_on_ranks
from trtspec.checkpoint.engine_draft import EngineDraft
from trtspec.checkpoint.tensors import DTYPES, FP8, Caster, Reader, SafetensorsFile, TensorEntry, chunks
from trtspec.models.families import family_of
from trtspec.models.source import Source

CHUNK = 1 << 20  # bytes; the casts of a piece this small stay in the processor's cache
FORMAT = 3  # version of what is written: raised when the same source and options give other bytes


@dataclass(frozen=True, slots=True)
class _Piece:
    """Some rows of a part, and the function that converts its numbers."""

    part: PlannedPart
    rows: range
    cast: Caster


def convert(
    source: Source,
    options: ConvertOptions,
    folder: Path,
    advance: Callable[[int], None] = lambda _: None,
    draft: EngineDraft | None = None,
) -> None:
    """Writes a model's checkpoint into `folder`, which must not exist; the same source gives the same bytes.

    Nothing is written before every tensor's presence, dtype and shape has been checked. `advance` is called
    with the number of bytes after each piece. Raises what `draw` raises, and UnavailableError if the
    disk has no room.
    """
    blueprint = draw(source, options, draft)
    folder.mkdir(parents=True)
    _check_space(folder, sum(entry.size for file in blueprint.files for entry in file.entries))
    config = json.dumps(blueprint.config, indent=4) + "\n"
    (folder / "config.json").write_text(config, encoding="utf-8")
    parts = [part for weight in blueprint.weights for part in weight.parts]
    pieces = _pieces(parts)
    with ExitStack() as stack:
        files = [
            stack.enter_context(SafetensorsFile(folder / f"rank{rank}.safetensors", file.entries))
            for rank, file in enumerate(blueprint.files)
        ]
        reader = stack.enter_context(Reader({part.tensor.file for part in parts}))
        for file, planned in zip(files, blueprint.files, strict=True):
            for name, scales in planned.scales.items():
                file.write(np.array(scales, "<f4").tobytes(), file.starts[name])
        in_threads(partial(_copy, reader, files, options.dtype), pieces, advance)


def checkpoint_size(source: Source, options: ConvertOptions, draft: EngineDraft | None = None) -> int:
    """Bytes of all weights on all ranks, the sum of what `convert` calls `advance` with."""
    return sum(rank_sizes(source, options, draft))


def rank_sizes(source: Source, options: ConvertOptions, draft: EngineDraft | None = None) -> list[int]:
    """Bytes of the weights on each rank, without the scales of FP8."""
    weights, mapping = list(family_of(source).weights(source)), options.mapping
    weights += draft.weights() if draft else ()
    dtype = DTYPES[options.dtype]

    sizes = [0] * mapping.world_size
    for weight in weights:
        stored = FP8 if options.fp8 and weight.linear else weight.dtype or dtype
        for rank, placed in placed_on_ranks(weight, source, mapping).items():
            sizes[rank] += TensorEntry(placed.name, stored, placed.shape).size
    return sizes


def _check_space(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        problem = f"the disk is full: the checkpoint needs {lacking(needed, free)}"
        raise UnavailableError(folder.parent, problem, "free some space, or choose another --output")


def _pieces(parts: Iterable[PlannedPart]) -> Iterator[_Piece]:
    """Yields the pieces in the order in which files have them."""
    for part in sorted(parts, key=lambda part: (part.tensor.file, part.tensor.start, part.rows.start)):
        cast = part.cast()
        for rows in chunks(part.rows, part.tensor, CHUNK):
            yield _Piece(part, rows, cast)


def _copy(reader: Reader, files: Sequence[SafetensorsFile], dtype: str, piece: _Piece) -> int:
    """Writes a piece to every rank that has a share of it, and returns the number of bytes.

    Raises TensorError for a number that is not finite, or too large for `dtype`.
    """
    tensor, written = piece.part.tensor, 0
    try:
        numbers = piece.cast(reader.finite_rows(tensor, piece.rows))
    except OverflowError as error:
        problem = f"{tensor.name}: holds {error.args[0]:g}, too large for {dtype}"
        raise TensorError(tensor.file, problem, "choose dtype: bfloat16 in the recipe") from error
    for target in piece.part.targets:
        rows, columns, file = target.share.rows, target.share.columns, files[target.rank]
        first, last = max(rows.start, piece.rows.start), min(rows.stop, piece.rows.stop)
        if first >= last:
            continue
        block = numbers[first - piece.rows.start : last - piece.rows.start, columns.start : columns.stop]
        row = target.share.at + first - rows.start
        start = file.starts[target.name] + row * len(columns) * numbers.itemsize
        file.write(np.ascontiguousarray(block).data, start)
        written += block.nbytes
    return written
