"""Writes one row for each measured request: as Parquet if pyarrow is installed, else as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from trtspec.base.atomic import publish, temporary, write_atomically
from trtspec.measure.bench.measure import LoadSamples
from trtspec.measure.bench.sample import ArmName, RequestSample

PARQUET, CSV = "samples.parquet", "samples.csv"
COLUMNS: dict[str, Callable[[RequestSample], object]] = {
    "prompt": lambda sample: sample.prompt,
    "category": lambda sample: sample.category,
    "turn": lambda sample: sample.turn,
    "intended_s": lambda sample: sample.intended,
    "sent_s": lambda sample: sample.sent,
    "first_text_s": lambda sample: sample.pieces[0] if sample.pieces else None,
    "ended_s": lambda sample: sample.ended,
    "time_to_first_token_s": lambda sample: sample.time_to_first_token,
    "inter_token_s": lambda sample: sample.inter_token,
    "end_to_end_s": lambda sample: sample.end_to_end,
    "input_tokens": lambda sample: sample.input_tokens,
    "output_tokens": lambda sample: sample.output_tokens,
    "pieces": lambda sample: len(sample.pieces),
    "finish_reason": lambda sample: sample.finish_reason,
    "verifications": lambda sample: sample.counts and sample.counts.verifications,
    "drafted": lambda sample: sample.counts and sample.counts.drafted,
    "accepted": lambda sample: sample.counts and sample.counts.accepted,
    "acceptance_histogram": lambda sample: sample.counts and json.dumps(sample.counts.histogram),
    "error": lambda sample: sample.error,
    "problem": lambda sample: sample.problem,
}
"""The columns of a request, after those of its block."""


def write_samples(measured: Sequence[LoadSamples], folder: Path, *, as_csv: bool) -> Path:
    """Writes every request atomically, including those of an interrupted pair; returns the file."""
    names, rows = ("load", "load_kind", "pair", "arm", *COLUMNS), list(_rows(measured))
    if as_csv or find_spec("pyarrow") is None:
        file, text = folder / CSV, io.StringIO()
        csv.writer(text).writerows([names, *rows])
        write_atomically(file, text.getvalue())
        return file
    import pyarrow as pa
    from pyarrow.parquet import write_table

    file = folder / PARQUET
    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[place] for row in rows] for place, name in enumerate(names)}
    write_table(pa.table(columns), temporary(file))
    publish(temporary(file), file)
    return file


def _rows(measured: Sequence[LoadSamples]) -> Iterator[tuple[object, ...]]:
    for level in measured:
        for number, pair in enumerate(level.pairs):
            for arm, block in pair.items():
                for sample in block.samples:
                    yield _row(level, number, arm, sample)
        for arm, sample in level.broken_off:
            yield _row(level, len(level.pairs), arm, sample)


def _row(level: LoadSamples, pair: int, arm: ArmName, sample: RequestSample) -> tuple[object, ...]:
    """Returns a request's row: the columns of its block, and its own."""
    return level.load.value, level.load.kind, pair, arm, *(of(sample) for of in COLUMNS.values())
