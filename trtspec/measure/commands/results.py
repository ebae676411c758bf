"""Prints the result of a bench as tables that fit a terminal of 80 columns."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.cli.terminal.output import out
from trtspec.measure.bench.compare import BenchComparison
from trtspec.measure.bench.result import ArmFigures, BenchResult, Interval, LoadResult, Percentiles
from trtspec.measure.report.drafts import per_token
from trtspec.measure.report.measured import MeasuredArms, load_header, of_comparison, of_result
from trtspec.measure.report.numbers import NOTHING, duration, interval, percent, plain
from trtspec.measure.report.numbers import times as as_ratio


def print_result(result: BenchResult) -> None:
    """Prints the verdict, the speed-up at each load, and the latencies."""
    out.sentence(result.verdict.words)
    if not result.levels:
        return
    measured = of_result(result)
    out.result()
    interval_of = f"{result.settings.confidence:.0%} interval"
    header = ("speed-up", interval_of, "tokens/s", "without", "accepted", "a round", "failed")
    out.table(map(_gained, result.levels), (load_header(measured.loads), *header))
    out.result()
    _print_waits(measured)


def print_comparison(comparison: BenchComparison) -> None:
    """Prints both runs, the ratio of B to A at each common load, and the latencies of each."""
    for name, result in (("A", comparison.first), ("B", comparison.second)):
        out.result(f"{name}: {result.server.software or result.server.api} at {result.server.url}")
        out.result(f"   {result.verdict.words}")
    if not comparison.rows:
        return
    measured = of_comparison(comparison)
    out.result()
    rows = (
        (
            f"{row.load.value:g}",
            _tokens(row.first.arms.speculative),
            _tokens(row.second.arms.speculative),
            *_ratio(row.ratio),
            as_ratio(row.first.speedup.value if row.first.speedup else None),
            as_ratio(row.second.speedup.value if row.second.speedup else None),
        )
        for row in comparison.rows
    )
    interval_of = f"{comparison.first.settings.confidence:.0%} interval"
    header = ("tokens/s A", "B", "B / A", interval_of, "speed-up A", "B")
    out.table(rows, (load_header(measured.loads), *header))
    out.result()
    _print_waits(measured)


def times(ratio: Interval | None) -> str:
    """Returns a ratio with its interval, for a line of progress."""
    return NOTHING if ratio is None else f"{as_ratio(ratio.value)} ({interval(ratio.low, ratio.high)})"


def _print_waits(measured: MeasuredArms) -> None:
    header = (*measured.header, "first text", "p99", "a token", "p99", "an answer", "p99")
    out.table(_waits(measured), header)


def _waits(measured: MeasuredArms) -> Iterator[tuple[str, ...]]:
    last = None
    for load, arm, figures in measured.each():
        found = (figures.time_to_first_token, figures.inter_token, figures.end_to_end)
        yield (
            "" if load == last else f"{load.value:g}",
            arm.short,
            *(time for percentiles in found for time in _median_and_tail(percentiles)),
        )
        last = load


def _median_and_tail(found: Percentiles | None) -> tuple[str, str]:
    return (duration(found.p50), duration(found.p99)) if found else (NOTHING, NOTHING)


def _gained(level: LoadResult) -> tuple[str, ...]:
    own, without = level.arms.speculative, level.arms.plain
    drafts = own.drafts.acceptance if own.drafts else None
    return (
        f"{level.load.value:g}",
        *_ratio(level.speedup),
        _tokens(own),
        _tokens(without),
        percent(per_token(drafts) if drafts else None),
        plain(drafts.tokens_per_verification if drafts else None),
        str(own.failed + (without.failed if without else 0)),
    )


def _ratio(ratio: Interval | None) -> tuple[str, str]:
    return (as_ratio(ratio.value), interval(ratio.low, ratio.high)) if ratio else (NOTHING, NOTHING)


def _tokens(figures: ArmFigures | None) -> str:
    return plain(figures.tokens_per_second.value if figures else None)
