"""Writes one row for each measured request: as Parquet if pyarrow is installed, else as CSV."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.base.atomic import publish, temporary, write_atomically
from trtspec.measure.bench.measure import LoadSamples
from trtspec.measure.bench.sample import ArmName, RequestSample

PARQUET, CSV = "samples.parquet", "samples.csv"
COLUMNS = (
    "load",
    "load_kind",
    "pair",
    "arm",
    "prompt",
    "category",
    "turn",
    "intended_s",
    "sent_s",
    "first_text_s",
    "ended_s",
    "time_to_first_token_s",
    "inter_token_s",
    "end_to_end_s",
    "input_tokens",
    "output_tokens",
    "pieces",
    "finish_reason",
    "verifications",
    "drafted",
    "accepted",
    "acceptance_histogram",
    "error",
    "problem",
)


def write_samples(measured: Sequence[LoadSamples], folder: Path, *, as_csv: bool) -> Path:
    """Writes every request atomically, including those of an interrupted pair; returns the file."""
    rows = list(_rows(measured))
    if as_csv or find_spec("pyarrow") is None:
        file, text = folder / CSV, io.StringIO()
        table = csv.DictWriter(text, COLUMNS)
        table.writeheader()
        table.writerows(rows)
        write_atomically(file, text.getvalue())
        return file
    import pyarrow as pa
    from pyarrow.parquet import write_table

    file = folder / PARQUET
    folder.mkdir(parents=True, exist_ok=True)
    columns = {name: [row[name] for row in rows] for name in COLUMNS}
    write_table(pa.table(columns), temporary(file))
    publish(temporary(file), file)
    return file


def _rows(measured: Sequence[LoadSamples]) -> Iterator[dict[str, Any]]:
    for level in measured:
        for number, pair in enumerate(level.pairs):
            for arm, block in pair.items():
                for sample in block.samples:
                    yield _row(level, number, arm, sample)
        for arm, sample in level.broken_off:
            yield _row(level, len(level.pairs), arm, sample)


def _row(level: LoadSamples, pair: int, arm: ArmName, sample: RequestSample) -> dict[str, Any]:
    counts = sample.counts
    values = (
        level.load.value,
        level.load.kind,
        pair,
        arm,
        sample.prompt,
        sample.category,
        sample.turn,
        sample.intended,
        sample.sent,
        sample.pieces[0] if sample.pieces else None,
        sample.ended,
        sample.time_to_first_token,
        sample.inter_token,
        sample.end_to_end,
        sample.input_tokens,
        sample.output_tokens,
        len(sample.pieces),
        sample.finish_reason,
        counts.verifications if counts else None,
        counts.drafted if counts else None,
        counts.accepted if counts else None,
        json.dumps(counts.histogram) if counts else None,
        sample.error,
        sample.problem,
    )
    return dict(zip(COLUMNS, values, strict=True))
