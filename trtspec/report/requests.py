"""What was asked and answered at each load: goodput, and requests that failed."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.result import Figures, Goodput, Level, Result
from trtspec.report import axis, lines, loads
from trtspec.report.lines import Line, Point
from trtspec.report.numbers import duration, percent, plain
from trtspec.report.section import Figure, Key, Section, Table
from trtspec.report.speed import WITH, WITHOUT


def arms(result: Result) -> Iterator[tuple[Level, str, Figures]]:
    """Yields the figures of each load, with drafts and then without."""
    for level in result.levels:
        yield level, WITH, level.arms.speculative
        if level.arms.plain:
            yield level, WITHOUT, level.arms.plain


def goodput(result: Result) -> Section | None:
    """Returns the requests a second that kept the latencies asked for; None where none were."""
    asked = ((level, arm, figures.goodput) for level, arm, figures in arms(result))
    known = [(level, arm, good) for level, arm, good in asked if good]
    if not known:
        return None
    plotted = [
        Line(arm, kind, tuple(_kept(level, arm, good) for level, of_arm, good in known if of_arm == arm))
        for arm, kind in ((WITH, "drafts"), (WITHOUT, "plain"))
    ]
    plotted = [line for line in plotted if line.points]
    values = [point.y for line in plotted for point in line.points]
    plot = lines.draw(
        "Goodput by load; the table has the figures.",
        plotted,
        loads.axis_of(result.levels),
        ("requests/s in time", axis.of_amounts(values, lambda value: f"{value:,.4g}")),
    )
    rows = tuple(
        (
            loads.cell(level),
            arm.removesuffix(" drafts"),
            plain(found.requests_per_second),
            percent(found.share),
        )
        for level, arm, found in known
    )
    header = (loads.header(result.levels), "drafts", "in time/s", "share of all")
    return Section(
        "Goodput",
        f"Requests that kept {targets(result)}; those that failed count as not kept.",
        (Figure(plot, tuple(Key(line.kind, line.name) for line in plotted)),),
        (Table("Goodput", header, rows, names=2),),
    )


def _kept(level: Level, arm: str, good: Goodput) -> Point:
    words = f"{level.load}, {arm}: {plain(good.requests_per_second)} requests/s, {percent(good.share)} of all"
    return Point(level.load.value, good.requests_per_second, words)


def targets(result: Result) -> str:
    """Returns the latencies that were asked for in words."""
    asked = result.settings.targets
    kinds = (
        ("first text within", asked.time_to_first_token),
        ("a token within", asked.inter_token),
        ("the whole answer within", asked.end_to_end),
    )
    return ", ".join(f"{name} {_limit(limit)}" for name, limit in kinds if limit is not None) or "no latency"


def _limit(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


def counts(result: Result) -> Section:
    """Returns how many requests were measured, and those of them that failed, by kind."""
    asked = sum(figures.requests for _, _, figures in arms(result))
    failed = sum(figures.failed for _, _, figures in arms(result))
    finding = f"{asked:,} requests were measured, and {f'{failed:,}' if failed else 'none'} failed."
    requests = tuple(
        (
            loads.cell(level),
            arm.removesuffix(" drafts"),
            f"{figures.requests:,}",
            f"{figures.failed:,}",
            plain(figures.requests_per_second),
            duration(figures.seconds),
        )
        for level, arm, figures in arms(result)
    )
    tokens = tuple(
        (
            loads.cell(level),
            arm.removesuffix(" drafts"),
            f"{figures.input_tokens:,}",
            f"{figures.output_tokens:,}",
            _mean(figures.output_tokens, figures.requests - figures.failed),
        )
        for level, arm, figures in arms(result)
    )
    first = (loads.header(result.levels), "drafts")
    kinds = tuple(
        (loads.cell(level), arm.removesuffix(" drafts"), kind, f"{count:,}")
        for level, arm, figures in arms(result)
        for kind, count in sorted(figures.errors.items())
        if count
    )
    failures = (Table("Failed, by kind", (*first, "kind", "requests"), kinds, names=3),) if kinds else ()
    tables = (
        Table("Requests", (*first, "asked", "failed", "answered/s", "time"), requests, names=2),
        Table("Tokens", (*first, "of prompts", "of answers", "an answer"), tokens, names=2),
        *failures,
    )
    return Section("Requests and errors", finding, (), tables)


def _mean(tokens: int, answers: int) -> str:
    return plain(tokens / answers if answers else None)


def failed_share(result: Result) -> float:
    """Returns the share of all requests that had no whole answer."""
    asked = sum(figures.requests for _, _, figures in arms(result))
    return sum(figures.failed for _, _, figures in arms(result)) / asked if asked else 0.0
