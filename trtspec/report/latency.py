"""Times that somebody waits: to the first text, for each token, for the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtspec.bench.result import Figures, Level, Percentiles, Result
from trtspec.report import axis, lines, loads
from trtspec.report.lines import Line, Point
from trtspec.report.numbers import NOTHING, duration, in_unit, plain, signed_percent
from trtspec.report.section import Figure, Key, Section, Table
from trtspec.report.speed import WITH, WITHOUT

Of = Callable[[Figures], Percentiles | None]


@dataclass(frozen=True, slots=True)
class Wait:
    """A kind of time: what it is called, what it is from and to, and which of an arm's figures it is."""

    title: str
    meaning: str
    of: Of


WAITS = (
    Wait(
        "Time to the first text",
        "From when a request was due until its first text came.",
        lambda figures: figures.time_to_first_token,
    ),
    Wait(
        "Time of a token after the first",
        "What a reader sees as speed: the mean over each answer, after its first text.",
        lambda figures: figures.inter_token,
    ),
    Wait(
        "From one piece of text to the next",
        "Drafts bring several tokens at once, so text comes in larger pieces and not as often.",
        lambda figures: figures.between_pieces,
    ),
    Wait(
        "Time of a whole request",
        "From when a request was due until its answer was whole.",
        lambda figures: figures.end_to_end,
    ),
)


def latencies(result: Result) -> Iterator[Section]:
    """Yields a section for each kind of time that was measured."""
    for wait in WAITS:
        measured = [(level, arm, found) for level, arm, found in _all(result, wait.of) if found]
        if measured:
            yield _section(result, wait, measured)


def _all(result: Result, of: Of) -> Iterator[tuple[Level, str, Percentiles | None]]:
    for level in result.levels:
        yield level, WITH, of(level.arms.speculative)
        if level.arms.plain:
            yield level, WITHOUT, of(level.arms.plain)


def _section(result: Result, wait: Wait, measured: list[tuple[Level, str, Percentiles]]) -> Section:
    plotted = [
        Line(
            f"{arm}, {name}",
            kind + tail,
            tuple(
                _point(level, arm, name, pick(found)) for level, of_arm, found in measured if of_arm == arm
            ),
        )
        for arm, kind in ((WITH, "drafts"), (WITHOUT, "plain"))
        for name, tail, pick in (("median", "", _median), ("99th percentile", " tail", _tail))
    ]
    plotted = [line for line in plotted if line.points]
    values = [point.y for line in plotted for point in line.points]
    factor, unit = in_unit(max(values))
    scaled = [_scaled(line, factor) for line in plotted]
    plot = lines.draw(
        f"{wait.title} by load; the table has the figures.",
        scaled,
        loads.axis_of(result.levels),
        (unit, axis.of_amounts([value * factor for value in values], lambda value: f"{value:,.4g}")),
    )
    rows = tuple(
        (loads.cell(level), arm.removesuffix(" drafts"), *(plain(value * factor) for value in _row(found)))
        for level, arm, found in measured
    )
    header = (loads.header(result.levels), "drafts", "p50", "p90", "p95", "p99", "mean")
    return Section(
        wait.title,
        f"{wait.meaning} {_finding(result, wait.of)}".strip(),
        (Figure(plot, tuple(Key(line.kind, line.name) for line in plotted)),),
        (Table(f"{wait.title}, {unit}: percentiles and mean", header, rows, names=2),),
    )


def _finding(result: Result, of: Of) -> str:
    """Returns how both arms compare at the lowest load and, where there is another, at the highest."""
    found = []
    for level in result.levels if len(result.levels) < 3 else (result.levels[0], result.levels[-1]):
        ours, plain_arm = of(level.arms.speculative), level.arms.plain
        theirs = of(plain_arm) if plain_arm else None
        if ours and theirs:
            change = signed_percent(ours.p50 / theirs.p50 - 1) if theirs.p50 else NOTHING
            found.append(
                f"at {level.load} {duration(ours.p50)} with drafts, {duration(theirs.p50)} without ({change})"
            )
        elif ours:
            found.append(f"at {level.load} {duration(ours.p50)}")
    return f"In the median {'; '.join(found)}." if found else ""


def _point(level: Level, arm: str, name: str, seconds: float) -> Point:
    return Point(level.load.value, seconds, f"{level.load}, {arm}, {name}: {duration(seconds)}")


def _scaled(line: Line, factor: float) -> Line:
    points = tuple(Point(point.x, point.y * factor, point.words) for point in line.points)
    return Line(line.name, line.kind, points)


def _row(found: Percentiles) -> tuple[float, ...]:
    return found.p50, found.p90, found.p95, found.p99, found.mean


def _median(found: Percentiles) -> float:
    return found.p50


def _tail(found: Percentiles) -> float:
    return found.p99
