"""Shows the speed-up at each load, and tokens per second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import sqrt

from trtspec.measure.bench.result import ArmFigures, BenchResult, Interval, LoadResult, OfferedLoad
from trtspec.measure.report.document import Figure, LegendKey, ReportSection, Table
from trtspec.measure.report.measured import MeasuredArms, ReportArm, axis_of, short
from trtspec.measure.report.numbers import interval, plain, times, with_interval
from trtspec.measure.report.plot import Line, PlotPoint, amounts, ratios


@dataclass(frozen=True, slots=True)
class Ratio:
    """The ratio of two speeds at a load."""

    load: OfferedLoad
    ratio: Interval
    single: tuple[float, ...] = ()
    """Single observations of the ratio."""


@dataclass(frozen=True, slots=True)
class Gain:
    """Ratios by load, their title, and the meaning of a ratio above or below 1."""

    title: str
    meaning: str
    confidence: float
    ratios: tuple[Ratio, ...]
    break_even: float | None = None


def gain_of(result: BenchResult) -> Gain:
    """Returns the gain by drafts."""
    found = tuple(
        Ratio(level.load, level.speedup, tuple(_twos(level))) for level in result.levels if level.speedup
    )
    confidence, break_even = result.settings.confidence, result.verdict.break_even
    return Gain("speed-up", "above 1x faster with drafts, below slower", confidence, found, break_even)


def gain_plot(gain: Gain) -> Figure | None:
    """Returns ratios by load with the break-even; None without ratios."""
    if not gain.ratios:
        return None
    loads = [found.load for found in gain.ratios]
    points = tuple(_ratio(found, gain.confidence) for found in gain.ratios)
    single = tuple(PlotPoint(found.load.value, one, "") for found in gain.ratios for one in found.single)
    even = gain.break_even
    plot = ratios(
        f"{gain.title} by load: {'; '.join(point.words for point in points)}.",
        Line(gain.title, "drafts", points),
        axis_of(loads),
        gain.meaning,
        (even, f"break-even {short(even)}") if even else None,
        single,
    )
    keys = [LegendKey("drafts dot", f"{gain.title}, with its {gain.confidence:.0%} interval")]
    if single:
        keys.append(LegendKey("scatter", "two pairs of blocks, each arm first in one"))
    return Figure(plot, tuple(keys))


def speed_plot(measured: MeasuredArms) -> Figure | None:
    """Returns tokens per second of each arm by load; None for one load, for which the table is enough."""
    if len(measured.loads) < 2:
        return None
    plotted = (
        Line(arm.name, arm.kind, tuple(_speed(load, figures, arm) for load, figures in arm.figures))
        for arm in measured.arms
    )
    words = "Tokens a second by load; the table has the figures."
    return amounts(words, plotted, measured.axis, "tokens/s, all streams together")


def throughput(measured: MeasuredArms, gain: Gain) -> ReportSection:
    """Returns tokens a second of each arm by load, and the gain in figures."""
    gained = {found.load: found.ratio for found in gain.ratios}
    rows = []
    for load in measured.loads:
        ratio, known = gained.get(load), (dict(arm.figures).get(load) for arm in measured.arms)
        speeds = (figures.tokens_per_second if figures else None for figures in known)
        told = (with_interval(plain(speed.value if speed else None), speed, plain) for speed in speeds)
        rows.append((f"{load.value:g}", *told, with_interval(times(ratio), ratio, "{:.2f}".format)))
    header = (measured.header[0], *(arm.name for arm in measured.arms), gain.title)
    caption = f"Tokens a second, all streams together, with intervals of {gain.confidence:.0%}"
    note = ""
    if measured.loads[0].kind == "rate":
        note = (
            "At a given rate the tokens per second follow from the rate; the gain is that of the time of a "
            "request."
        )
    plot = speed_plot(measured)
    return ReportSection(
        "Tokens a second",
        f"The most were {'; '.join(_most(arm) for arm in measured.arms)}.",
        (plot,) if plot else (),
        (Table(caption, header, tuple(rows), note=note),),
    )


def _twos(level: LoadResult) -> Iterator[float]:
    """Yields the speed-up of each two pairs of blocks together, in which each arm came first once.

    The second block of a pair finds caches warm, so a single pair says little.
    """
    found = []
    for with_drafts, without in level.pairs:
        # For a rate the pairs are times, for streams tokens per second.
        over, under = (with_drafts, without) if level.load.kind == "streams" else (without, with_drafts)
        found.append(over / under if under > 0 else 0.0)
    for one, other in zip(found[::2], found[1::2], strict=False):
        if one > 0 and other > 0:
            yield sqrt(one * other)


def _most(arm: ReportArm) -> str:
    load, figures = max(arm.figures, key=lambda found: found[1].tokens_per_second.value)
    return f"{plain(figures.tokens_per_second.value)} {arm.phrase} at {load}"


def _ratio(found: Ratio, confidence: float) -> PlotPoint:
    ratio = found.ratio
    words = f"{found.load}: {times(ratio)}, {confidence:.0%} interval {interval(ratio)}"
    return PlotPoint(found.load.value, ratio.value, words, ratio.low, ratio.high)


def _speed(load: OfferedLoad, figures: ArmFigures, arm: ReportArm) -> PlotPoint:
    speed = figures.tokens_per_second
    words = f"{load}, {arm.name}: {plain(speed.value)} ({plain(speed.low)} - {plain(speed.high)}) tokens/s"
    return PlotPoint(load.value, speed.value, words, speed.low, speed.high)
