"""Shows latencies: to the first text, for each token, and for the whole answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from trtspec.measure.bench.result import ArmFigures, OfferedLoad, Percentiles
from trtspec.measure.report.document import ReportSection, Table
from trtspec.measure.report.measured import MeasuredArms, ReportArm, cells
from trtspec.measure.report.numbers import change, duration, in_unit, plain
from trtspec.measure.report.plot import Line, PlotPoint, amounts

Of = Callable[[ArmFigures], Percentiles | None]
Pick = Callable[[Percentiles], float]
Known = tuple[OfferedLoad, ReportArm, Percentiles]


@dataclass(frozen=True, slots=True)
class Wait:
    """A kind of latency."""

    title: str
    meaning: str
    """The beginning and the end of the time, in words."""
    of: Of
    """Returns this time from the figures of an arm."""


WAITS = (
    Wait(
        "Time to the first text",
        "From when a request was due until its first text came.",
        lambda figures: figures.time_to_first_token,
    ),
    Wait(
        "Time of a token after the first",
        "The speed that a reader sees: the mean over each answer, after its first text.",
        lambda figures: figures.inter_token,
    ),
    Wait(
        "From one piece of text to the next",
        "Drafts bring several tokens at once, so text comes in larger pieces and less often.",
        lambda figures: figures.between_pieces,
    ),
    Wait(
        "Time of a whole request",
        "From when a request was due until its answer was whole.",
        lambda figures: figures.end_to_end,
    ),
)
_PICKS: tuple[tuple[str, str, Pick], ...] = (
    ("median", "", lambda found: found.p50),
    ("99th percentile", " tail", lambda found: found.p99),
)


def latencies(measured: MeasuredArms) -> Iterator[ReportSection]:
    """Yields a section for each measured latency."""
    for wait in WAITS:
        each = measured.each()
        if known := [(load, arm, found) for load, arm, figures in each if (found := wait.of(figures))]:
            yield _section(measured, wait, known)


def _section(measured: MeasuredArms, wait: Wait, known: list[Known]) -> ReportSection:
    factor, unit = in_unit(max(found.p99 for _, _, found in known))
    plotted = (
        Line(f"{arm.name}, {name}", f"{arm.kind}{tail}", tuple(_points(known, arm, name, pick, factor)))
        for arm in measured.arms
        for name, tail, pick in _PICKS
    )
    words = f"{wait.title} by load; the table has the figures."
    figure = amounts(words, plotted, measured.axis, unit)
    rows = tuple(
        (*cells(load, arm), *(plain(time * factor) for time in (of.p50, of.p90, of.p95, of.p99, of.mean)))
        for load, arm, of in known
    )
    header = (*measured.header, "p50", "p90", "p95", "p99", "mean")
    return ReportSection(
        wait.title,
        f"{wait.meaning} {_finding(measured, wait.of)}".strip(),
        (figure,) if len(measured.loads) > 1 else (),
        (Table(f"{wait.title}, {unit}: percentiles and mean", header, rows, names=2),),
    )


def _finding(measured: MeasuredArms, of: Of) -> str:
    """Returns how the arms compare at the lowest load and, if there is another, at the highest."""
    loads, said = measured.loads, []
    for at in loads if len(loads) < 3 else (loads[0], loads[-1]):
        found = [(arm, of(figures)) for load, arm, figures in measured.each() if load == at]
        known = [(arm, times.p50) for arm, times in found if times]
        if known:
            told = ", ".join(f"{duration(seconds)} {arm.phrase}" for arm, seconds in known)
            differs = measured.change([seconds for _, seconds in known])
            said.append(f"at {at} {told}" + ("" if differs is None else f" ({change(differs)})"))
    return f"In the median {'; '.join(said)}." if said else ""


def _points(known: list[Known], of: ReportArm, name: str, pick: Pick, factor: float) -> Iterator[PlotPoint]:
    for load, arm, found in known:
        if arm is of:
            words = f"{load}, {arm.name}, {name}: {duration(pick(found))}"
            yield PlotPoint(load.value, pick(found) * factor, words)
