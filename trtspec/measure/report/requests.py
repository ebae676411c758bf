"""Shows the requests of each load, their rounds, and what the server's metrics reported."""

from __future__ import annotations

from trtspec.measure.bench.result import ArmFigures, Goodput, OfferedLoad, Targets
from trtspec.measure.report.document import LegendKey, ReportSection, Table
from trtspec.measure.report.measured import MeasuredArms, ReportArm, cells
from trtspec.measure.report.numbers import duration, in_unit, percent, plain
from trtspec.measure.report.plot import Line, PlotPoint, amounts, bar

_KINDS = ("draft-part", "drafts", "rest")
_NAMES = ("draft", "verification", "everything else")


def goodput(measured: MeasuredArms, targets: Targets) -> ReportSection | None:
    """Returns the requests per second that met the requested latencies; None if none were requested."""
    known = [(load, arm, good) for load, arm, figures in measured.each() if (good := figures.goodput)]
    if not known:
        return None
    plotted = (
        Line(arm.name, arm.kind, tuple(_kept(load, arm, good) for load, of, good in known if of is arm))
        for arm in measured.arms
    )
    words = "Goodput by load; the table has the figures."
    figure = amounts(words, plotted, measured.axis, "requests/s in time")
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
    known = ((name, limit) for name, limit in kinds if limit is not None)
    told = (f"{name} {f'{at * 1e3:g} ms' if at < 1 else f'{at:g} s'}" for name, at in known)
    return ", ".join(told) or "none"


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
    tables = [
        Table("Requests", (*measured.header, "asked", "failed", "answered/s", "time"), requests, names=2),
        Table("Tokens", (*measured.header, "of prompts", "of answers", "an answer"), tokens, names=2),
    ]
    if kinds:
        tables.append(Table("Failed, by kind", (*measured.header, "kind", "requests"), kinds, names=3))
    return ReportSection("Requests and errors", finding, (), tuple(tables))


def _kept(load: OfferedLoad, arm: ReportArm, good: Goodput) -> PlotPoint:
    words = f"{load}, {arm.name}: {plain(good.requests_per_second)} requests/s, {percent(good.share)} of all"
    return PlotPoint(load.value, good.requests_per_second, words)


def _an_answer(figures: ArmFigures) -> str:
    answers = figures.requests - figures.failed
    return plain(figures.output_tokens / answers if answers else None)


def rounds(measured: MeasuredArms) -> ReportSection | None:
    """Returns the times of drafting and verifying in a round; None if the server does not report them."""
    told = ((load, arm, figures.inside.round_times) for load, arm, figures in measured.each())
    parts = ((load, arm, (of.draft, of.verify, of.overhead)) for load, arm, of in told if of)
    known = [(load, arm, seconds, sum(seconds)) for load, arm, seconds in parts if sum(seconds) > 0]
    if not known:
        return None
    factor, unit = in_unit(max(whole for *_, whole in known))
    rows = tuple(
        (*cells(load, arm), _bar(seconds), *(plain(each * factor) for each in (*seconds, whole)))
        for load, arm, seconds, whole in known
    )
    load, arm, seconds, whole = known[0]
    draft, verify, overhead = (percent(each / whole) for each in seconds)
    finding = (
        f"At {load} a round {arm.phrase} takes {duration(whole)}: {draft} draft, {verify} verification, "
        f"{overhead} everything else."
    )
    header = (*measured.header, "shares", "draft", "verify", "other", "round")
    keys = tuple(LegendKey(f"{kind} fill", name) for kind, name in zip(_KINDS, _NAMES, strict=True))
    table = Table(f"Mean time of a round, {unit}", header, rows, names=2, keys=keys)
    return ReportSection("Where the time of a round goes", finding, (), (table,))


def server(measured: MeasuredArms) -> ReportSection | None:
    """Returns the use of the server's caches and GPUs; None if nothing is known."""
    told = [(load, arm, figures.inside) for load, arm, figures in measured.each()]
    gpu = any(inside.gpu_use is not None for _, _, inside in told)
    shares = [("prompt tokens from the KV cache", [inside.kv_reuse for _, _, inside in told])]
    shares.append(("GPU busy", [inside.gpu_use for _, _, inside in told]))
    known = [(name, found) for name, found in shares if any(share is not None for share in found)]
    if not known:
        return None
    rows = tuple(
        (*cells(load, arm), *(percent(found[row]) for _, found in known))
        for row, (load, arm, _) in enumerate(told)
    )
    header = (*measured.header, *(name for name, _ in known))
    words = "The use of the server's caches and GPUs during the run."
    if gpu:
        words += " Drafts pay while a GPU has time to spare."
    table = Table("Shares", header, rows, names=2)
    return ReportSection("Cache and GPU" if gpu else "KV cache", words, (), (table,))


def _bar(seconds: tuple[float, ...]) -> str:
    shares = [(kind, part / sum(seconds)) for kind, part in zip(_KINDS, seconds, strict=True)]
    draft, verify, other = (percent(share) for _, share in shares)
    return bar(shares, f"{draft} draft, {verify} verification, {other} other")
