"""The result of a bench as rows for a terminal."""

from __future__ import annotations

from trtspec.bench.compare import Comparison
from trtspec.bench.result import Figures, Interval, Level, Percentiles, Result

HEADER = (
    "load",
    "speed-up",
    "tokens/s",
    "without",
    "first token p50/p95",
    "between p50/p95",
    "whole p50/p95",
    "accepted",
    "failed",
)
COMPARED = ("load", "first", "second", "second / first", "speed-up of first", "of second")
_UNKNOWN = "-"


def rows(result: Result) -> list[tuple[str, ...]]:
    """Returns a row for each load, under `HEADER`; latencies are those with drafts."""
    return [_row(level) for level in result.levels]


def compared(comparison: Comparison) -> list[tuple[str, ...]]:
    """Returns a row for each load that both runs have, under `COMPARED`."""
    return [
        (
            str(row.load),
            tokens(row.first.arms.speculative),
            tokens(row.second.arms.speculative),
            times(row.ratio),
            times(row.first.speedup),
            times(row.second.speedup),
        )
        for row in comparison.rows
    ]


def times(ratio: Interval | None) -> str:
    if ratio is None:
        return _UNKNOWN
    digits = 1 if ratio.half_width >= 0.1 else 2
    return f"{ratio.value:.{digits}f}x ({ratio.low:.{digits}f} to {ratio.high:.{digits}f})"


def tokens(figures: Figures | None) -> str:
    return f"{figures.tokens_per_second.value:,.0f}" if figures else _UNKNOWN


def _row(level: Level) -> tuple[str, ...]:
    own, drafts = level.arms.speculative, level.arms.speculative.drafts
    failed = own.failed + (level.arms.plain.failed if level.arms.plain else 0)
    return (
        str(level.load),
        times(level.speedup),
        tokens(own),
        tokens(level.arms.plain),
        _latency(own.time_to_first_token),
        _latency(own.inter_token),
        _latency(own.end_to_end),
        f"{drafts.acceptance.rate:.0%}" if drafts else _UNKNOWN,
        str(failed),
    )


def _latency(found: Percentiles | None) -> str:
    return f"{_time(found.p50)} / {_time(found.p95)}" if found else _UNKNOWN


def _time(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{seconds * 1000:.0f} ms" if seconds >= 0.01 else f"{seconds * 1000:.1f} ms"
