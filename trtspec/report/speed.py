"""Speed: what drafts gain at each load, and tokens a second with them and without."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.bench.result import Figures, Interval, Level, Result
from trtspec.report import axis, lines, loads
from trtspec.report.lines import Line, Mark, Point
from trtspec.report.numbers import NOTHING, interval, plain, times
from trtspec.report.section import Figure, Key, Section, Table

WITH, WITHOUT = "with drafts", "without drafts"


def speedup_plot(result: Result) -> Figure | None:
    """Returns speed-up by load with the break-even; None where no load has one."""
    measured = [level for level in result.levels if level.speedup]
    if not measured:
        return None
    points = tuple(_ratio(level, level.speedup, result) for level in measured if level.speedup)
    pairs = tuple(Point(level.load.value, ratio, "") for level in measured for ratio in ratios(level))
    break_even = result.verdict.break_even
    marks = [Mark(break_even, f"break-even {break_even:.3g}")] if break_even else []
    ends = [end for point in points for end in (point.low, point.high, point.y) if end is not None]
    spread = [pair.y for pair in pairs]
    said = "; ".join(point.words for point in points)
    plot = lines.draw(
        f"Speed-up by load: {said}. Above 1 drafts make it faster.",
        [Line("pairs", "drafts", points)],
        loads.axis_of(measured),
        ("speed-up", axis.around(ends + spread, 1.0, lambda ratio: f"{ratio:g}x")),
        level=lines.Level(1.0, "faster with drafts", "slower with drafts"),
        marks=marks,
        scattered=pairs,
        named=True,
    )
    confidence = f"{result.settings.confidence:.0%} interval"
    keys = (Key("drafts dot", f"speed-up, with its {confidence}"), Key("scatter", "one pair of blocks"))
    return Figure(plot, keys)


def ratios(level: Level) -> Iterator[float]:
    """Yields the speed-up of each pair of blocks."""
    for with_drafts, without in level.pairs:
        # Of a rate the pairs are times, of streams tokens a second.
        over, under = (with_drafts, without) if level.load.kind == "streams" else (without, with_drafts)
        if under:
            yield over / under


def throughput(result: Result) -> Section:
    """Returns tokens a second of both arms by load, and the speed-up in figures."""
    levels = result.levels
    arms = [Line(WITH, "drafts", tuple(_speed(level, level.arms.speculative, WITH) for level in levels))]
    plain_points = tuple(_speed(level, level.arms.plain, WITHOUT) for level in levels if level.arms.plain)
    if plain_points:
        arms.append(Line(WITHOUT, "plain", plain_points))
    ends = [end for line in arms for point in line.points for end in (point.y, point.high or point.y)]
    plot = lines.draw(
        "Tokens a second by load; the table has the figures.",
        arms,
        loads.axis_of(levels),
        ("tokens/s, all streams together", axis.of_amounts(ends, _tick)),
    )
    rows = tuple(
        (
            loads.cell(level),
            _plus_minus(level.arms.speculative.tokens_per_second),
            _plus_minus(level.arms.plain.tokens_per_second) if level.arms.plain else NOTHING,
            times(level.speedup.value if level.speedup else None),
            interval(level.speedup.low, level.speedup.high) if level.speedup else NOTHING,
        )
        for level in levels
    )
    header = (loads.header(levels), WITH, WITHOUT, "speed-up", f"{result.settings.confidence:.0%} interval")
    best = max(levels, key=lambda level: level.arms.speculative.tokens_per_second.value)
    most = best.arms.speculative.tokens_per_second.value
    note = ""
    if levels[0].load.kind == "rate":
        note = (
            "At a given rate tokens a second follow from the rate; the speed-up is of the time of a request."
        )
    return Section(
        "Tokens a second",
        f"The most with drafts were {plain(most)} tokens a second, at {best.load}.",
        (Figure(plot, tuple(Key(line.kind, line.name) for line in arms)),),
        (Table("Tokens a second, all streams together", header, rows, note=note),),
    )


def _ratio(level: Level, speedup: Interval, result: Result) -> Point:
    words = (
        f"{level.load}: {times(speedup.value)}, "
        f"{result.settings.confidence:.0%} interval {interval(speedup.low, speedup.high)}"
    )
    return Point(level.load.value, speedup.value, words, speedup.low, speedup.high)


def _speed(level: Level, figures: Figures, arm: str) -> Point:
    speed = figures.tokens_per_second
    words = f"{level.load}, {arm}: {_plus_minus(speed)} tokens/s"
    return Point(level.load.value, speed.value, words, speed.low, speed.high)


def _plus_minus(speed: Interval) -> str:
    return f"{plain(speed.value)} ± {plain(speed.half_width, 2)}"


def _tick(amount: float) -> str:
    return f"{amount:,.4g}" if amount < 10_000 else f"{amount / 1000:,.4g}k"
