"""Shows the requests of each load: goodput, and requests that failed."""

from __future__ import annotations

from trtspec.measure.bench.result import ArmFigures, Goodput, OfferedLoad, Targets
from trtspec.measure.report import axis, lines
from trtspec.measure.report.lines import Line, PlotPoint
from trtspec.measure.report.measured import MeasuredArms, ReportArm, cells
from trtspec.measure.report.numbers import duration, percent, plain
from trtspec.measure.report.section import Figure, LegendKey, ReportSection, Table


def goodput(measured: MeasuredArms, targets: Targets) -> ReportSection | None:
    """Returns the requests per second that met the requested latencies; None if none were requested."""
    told = ((load, arm, figures.goodput) for load, arm, figures in measured.each())
    known = [(load, arm, good) for load, arm, good in told if good]
    if not known:
        return None
    plotted = [
        Line(arm.name, arm.kind, tuple(_kept(load, arm, good) for load, of, good in known if of is arm))
        for arm in measured.arms
    ]
    plotted = [line for line in plotted if line.points]
    values = [point.y for line in plotted for point in line.points]
    plot = lines.draw(
        "Goodput by load; the table has the figures.",
        plotted,
        measured.axis,
        ("requests/s in time", axis.of_amounts(values, "{:,.4g}".format)),
    )
    figure = Figure(plot, tuple(LegendKey(line.kind, line.name) for line in plotted))
    rows = tuple(
        (*cells(load, arm), plain(good.requests_per_second), percent(good.share)) for load, arm, good in known
    )
    return ReportSection(
        "Goodput",
        f"Requests that met {in_words(targets)}; failed requests count as missed.",
        (figure,) if len(measured.loads) > 1 else (),
        (Table("Goodput", (*measured.header, "in time/s", "share of all"), rows, names=2),),
    )


def in_words(targets: Targets) -> str:
    """Returns the requested latencies in words."""
    kinds = (
        ("first text within", targets.time_to_first_token),
        ("a token within", targets.inter_token),
        ("the whole answer within", targets.end_to_end),
    )
    return ", ".join(f"{name} {_limit(limit)}" for name, limit in kinds if limit is not None) or "none"


def counts(measured: MeasuredArms) -> ReportSection:
    """Returns the number of measured requests, and of failed ones by kind."""
    each = list(measured.each())
    asked = sum(figures.requests for _, _, figures in each)
    failed = sum(figures.failed for _, _, figures in each)
    finding = f"{asked:,} requests were measured, and {f'{failed:,}' if failed else 'none'} failed."
    requests = tuple(
        (
            *cells(load, arm),
            f"{figures.requests:,}",
            f"{figures.failed:,}",
            plain(figures.requests_per_second),
            duration(figures.seconds),
        )
        for load, arm, figures in each
    )
    tokens = tuple(
        (*cells(load, arm), f"{figures.input_tokens:,}", f"{figures.output_tokens:,}", _an_answer(figures))
        for load, arm, figures in each
    )
    kinds = tuple(
        (*cells(load, arm), kind, f"{count:,}")
        for load, arm, figures in each
        for kind, count in sorted(figures.errors.items())
        if count
    )
    failures = (
        (Table("Failed, by kind", (*measured.header, "kind", "requests"), kinds, names=3),) if kinds else ()
    )
    tables = (
        Table("Requests", (*measured.header, "asked", "failed", "answered/s", "time"), requests, names=2),
        Table("Tokens", (*measured.header, "of prompts", "of answers", "an answer"), tokens, names=2),
        *failures,
    )
    return ReportSection("Requests and errors", finding, (), tables)


def _kept(load: OfferedLoad, arm: ReportArm, good: Goodput) -> PlotPoint:
    words = f"{load}, {arm.name}: {plain(good.requests_per_second)} requests/s, {percent(good.share)} of all"
    return PlotPoint(load.value, good.requests_per_second, words)


def _limit(seconds: float) -> str:
    return f"{seconds * 1e3:g} ms" if seconds < 1 else f"{seconds:g} s"


def _an_answer(figures: ArmFigures) -> str:
    answers = figures.requests - figures.failed
    return plain(figures.output_tokens / answers if answers else None)
