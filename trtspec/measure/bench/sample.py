"""Holds the times of requests: of one, of a block, of a load; and writes a row for each.

The file is Parquet if pyarrow is installed, else CSV.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from trtspec.base.files import publish, temporary, write_atomically
from trtspec.client.endpoint import DraftCounts
from trtspec.measure.bench.result import OfferedLoad
from trtspec.measure.bench.server_metrics import KvReuseShare, Meanwhile

ArmName = Literal["speculative", "plain"]


@dataclass(frozen=True, slots=True)
class RequestSample:
    """A measured request; times are seconds since its block began."""

    prompt: str
    category: str
    turn: int
    intended: float
    """The time at which it was due. Latencies count from here."""
    sent: float
    """The time at which it was sent."""
    ended: float
    pieces: tuple[float, ...] = ()
    """The time at which each piece of its text came."""
    input_tokens: int = 0
    output_tokens: int = 0
    """The number of tokens, or of pieces of text if the server reports no tokens."""
    tokens_told: bool = True
    """True if the server reports the number of output tokens."""
    finish_reason: str | None = None
    counts: DraftCounts | None = None
    error: str | None = None
    """A kind of `AskError`; None for a whole answer."""
    problem: str = ""
    """The error in the server's words."""

    @property
    def time_to_first_token(self) -> float | None:
        return self.pieces[0] - self.intended if self.pieces else None

    @property
    def end_to_end(self) -> float:
        return self.ended - self.intended

    @property
    def inter_token(self) -> float | None:
        """The mean time of a token after the first text, as AIPerf defines it; None for fewer than two
        tokens."""
        if self.output_tokens < 2 or not self.pieces:
            return None
        return (self.ended - self.pieces[0]) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Block:
    """The requests that ran together."""

    samples: tuple[RequestSample, ...]
    seconds: float
    """The time until the last request had its answer."""
    full_until: float
    """The time, in seconds since the block began, at which its full load ended. Until then all streams were
    busy, or requests still came.
    """

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second under full load, 0.0 for none.

        In the tail fewer and fewer streams are busy. That is another load, at which drafts may gain more or
        less. A request that ended in the tail counts with the share of its pieces that came before. If no
        answer ended under full load, the whole block counts.
        """
        ended = (sample.ended for sample in self.samples if sample.error is None)
        window = self.full_until if any(end <= self.full_until for end in ended) else self.seconds
        tokens = sum(
            sample.output_tokens * (sum(piece <= window for piece in sample.pieces) / len(sample.pieces))
            for sample in self.samples
            if sample.error is None and sample.pieces
        )
        return tokens / window if window > 0 else 0.0

    @property
    def mean_end_to_end(self) -> float | None:
        """The mean time of the requests that were answered; None for none."""
        times = [sample.end_to_end for sample in self.samples if sample.error is None]
        return sum(times) / len(times) if times else None


@dataclass(slots=True)
class LoadSamples:
    """The samples of one load."""

    load: OfferedLoad
    pairs: list[dict[ArmName, Block]] = field(default_factory=list)
    """Complete pairs of blocks."""
    broken_off: list[tuple[ArmName, RequestSample]] = field(default_factory=list)
    """The samples of an incomplete pair."""
    meanwhile: Meanwhile | None = None
    """The growth of the server's metrics over all blocks."""
    kv_reuse: dict[ArmName, KvReuseShare] = field(default_factory=dict)
    """For each arm, the prompt tokens that the KV cache had."""
    gpu_use: dict[ArmName, float | None] = field(default_factory=dict)
    """For each arm, the share of time in which the GPUs were busy; None if unknown."""

    def blocks(self, arm: ArmName) -> list[Block]:
        return [pair[arm] for pair in self.pairs]


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
    """Yields a request's row: the columns of its block, and its own."""
    for level in measured:
        pairs = [[(arm, one) for arm, block in pair.items() for one in block.samples] for pair in level.pairs]
        for number, block in enumerate([*pairs, level.broken_off]):
            for arm, sample in block:
                own = (of(sample) for of in COLUMNS.values())
                yield level.load.value, level.load.kind, number, arm, *own
