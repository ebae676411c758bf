"""Shows how the time of a round is spent, and what the server's metrics reported."""

from __future__ import annotations

from trtspec.measure.bench.result import MeanRoundTimes
from trtspec.measure.report import bars
from trtspec.measure.report.measured import MeasuredArms, cells
from trtspec.measure.report.numbers import duration, in_unit, percent, plain
from trtspec.measure.report.section import LegendKey, ReportSection, Table

_KINDS = ("draft-part", "drafts", "rest")
_NAMES = ("draft", "verification", "everything else")


def times(measured: MeasuredArms) -> ReportSection | None:
    """Returns the times of drafting and verifying in a round; None if the server does not report them."""
    told = ((load, arm, figures.inside.round_times) for load, arm, figures in measured.each())
    known = [(load, arm, found) for load, arm, found in told if found and sum(_parts(found)) > 0]
    if not known:
        return None
    factor, unit = in_unit(max(sum(_parts(found)) for _, _, found in known))
    rows = tuple((*cells(load, arm), _bar(found), *_row(found, factor)) for load, arm, found in known)
    load, arm, first = known[0]
    whole = sum(_parts(first))
    finding = (
        f"At {load} a round {arm.phrase} takes {duration(whole)}: {percent(first.draft / whole)} draft, "
        f"{percent(first.verify / whole)} verification, {percent(first.overhead / whole)} everything else."
    )
    header = (*measured.header, "shares", "draft", "verify", "other", "round")
    keys = tuple(LegendKey(f"{kind} fill", name) for kind, name in zip(_KINDS, _NAMES, strict=True))
    table = Table(f"Mean time of a round, {unit}", header, rows, names=2, keys=keys)
    return ReportSection("Where the time of a round goes", finding, (), (table,))


def server(measured: MeasuredArms) -> ReportSection | None:
    """Returns the use of the server's caches and GPUs; None if nothing is known."""
    told = [(load, arm, figures.inside) for load, arm, figures in measured.each()]
    reuse = any(inside.kv_reuse is not None for _, _, inside in told)
    gpu = any(inside.gpu_use is not None for _, _, inside in told)
    if not (reuse or gpu):
        return None
    rows = tuple(
        (
            *cells(load, arm),
            *((percent(inside.kv_reuse),) if reuse else ()),
            *((percent(inside.gpu_use),) if gpu else ()),
        )
        for load, arm, inside in told
    )
    header = (
        *measured.header,
        *(("prompt tokens from the KV cache",) if reuse else ()),
        *(("GPU busy",) if gpu else ()),
    )
    words = "The use of the server's caches and GPUs during the run."
    if gpu:
        words += " Drafts pay while a GPU has time to spare."
    return ReportSection(
        "Cache and GPU" if gpu else "KV cache", words, (), (Table("Shares", header, rows, names=2),)
    )


def _parts(found: MeanRoundTimes) -> tuple[float, float, float]:
    return found.draft, found.verify, found.overhead


def _bar(found: MeanRoundTimes) -> str:
    parts, whole = _parts(found), sum(_parts(found))
    shares = [(kind, part / whole) for kind, part in zip(_KINDS, parts, strict=True)]
    draft, verify, other = (percent(share) for _, share in shares)
    return bars.parts(shares, f"{draft} draft, {verify} verification, {other} other")


def _row(found: MeanRoundTimes, factor: float) -> tuple[str, ...]:
    return tuple(plain(part * factor) for part in (*_parts(found), sum(_parts(found))))
