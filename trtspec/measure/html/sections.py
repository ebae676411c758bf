"""Makes the sections of a report: speed, latencies, requests, and the acceptance of drafts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from math import sqrt

from trtspec.measure.bench.result import (
    ArmFigures,
    BenchResult,
    DraftAcceptance,
    Goodput,
    Interval,
    LoadResult,
    OfferedLoad,
    Percentiles,
    Targets,
)
from trtspec.measure.html.arms import MeasuredArms, ReportArm, axis_of, cells, short
from trtspec.measure.html.document import Figure, LegendKey, ReportSection, Table
from trtspec.measure.html.numbers import (
    change,
    duration,
    in_unit,
    interval,
    percent,
    plain,
    times,
    with_interval,
)
from trtspec.measure.html.plot import Columns, Line, PlotPoint, amounts, bar, columns, ratios

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
            medians = ", ".join(f"{duration(seconds)} {arm.phrase}" for arm, seconds in known)
            differs = measured.change([seconds for _, seconds in known])
            said.append(f"at {at} {medians}" + ("" if differs is None else f" ({change(differs)})"))
    return f"In the median {'; '.join(said)}." if said else ""


def _points(known: list[Known], of: ReportArm, name: str, pick: Pick, factor: float) -> Iterator[PlotPoint]:
    for load, arm, found in known:
        if arm is of:
            words = f"{load}, {arm.name}, {name}: {duration(pick(found))}"
            yield PlotPoint(load.value, pick(found) * factor, words)


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
    limits = (f"{name} {f'{at * 1e3:g} ms' if at < 1 else f'{at:g} s'}" for name, at in known)
    return ", ".join(limits) or "none"


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
    timed = ((load, arm, figures.inside.round_times) for load, arm, figures in measured.each())
    parts = ((load, arm, (of.draft, of.verify, of.overhead)) for load, arm, of in timed if of)
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
    each = [(load, arm, figures.inside) for load, arm, figures in measured.each()]
    gpu = any(inside.gpu_use is not None for _, _, inside in each)
    shares = [("prompt tokens from the KV cache", [inside.kv_reuse for _, _, inside in each])]
    shares.append(("GPU busy", [inside.gpu_use for _, _, inside in each]))
    known = [(name, found) for name, found in shares if any(share is not None for share in found)]
    if not known:
        return None
    rows = tuple(
        (*cells(load, arm), *(percent(found[row]) for _, found in known))
        for row, (load, arm, _) in enumerate(each)
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


_CATEGORY = ("accepted", "a token", "of drafted", "tokens a round", "drafted")


def together(parts: Iterable[DraftAcceptance]) -> DraftAcceptance:
    """Returns the sum of all counts."""
    counted = list(parts)
    positions = zip_longest(*(one.accepted_per_position for one in counted), fillvalue=0)
    return DraftAcceptance(
        sum(one.verifications for one in counted),
        sum(one.drafted for one in counted),
        sum(one.accepted for one in counted),
        tuple(map(sum, positions)),
    )


def whole(arm: ReportArm) -> DraftAcceptance | None:
    """Returns the draft counts of all loads; None if there are none."""
    return together(drafts.acceptance for drafts in arm.drafts) if arm.drafts else None


def per_token(found: DraftAcceptance) -> float | None:
    """Returns the conditional acceptance: of tokens before which all were accepted, the accepted share."""
    reached = found.verifications + sum(found.accepted_per_position[:-1])
    return sum(found.accepted_per_position) / reached if reached else None


def by_category(arm: ReportArm) -> dict[str, DraftAcceptance]:
    """Returns the draft counts of each category at all loads."""
    names = sorted({name for drafts in arm.drafts for name in drafts.by_category})
    return {
        name: together(drafts.by_category[name] for drafts in arm.drafts if name in drafts.by_category)
        for name in names
    }


def acceptance(measured: MeasuredArms) -> ReportSection | None:
    """Returns the acceptance by position and by load; None without draft counts."""
    known = [(arm, found) for arm in measured.arms if (found := whole(arm))]
    if not known:
        return None
    kinds = [kind for arm, found in known for kind in _columns(arm, found, alone=len(known) == 1)]
    length = max(len(kind.shares) for kind in kinds)
    names = tuple(str(number + 1) for number in range(length))
    words = "Acceptance by position; the table has the figures."
    plot = columns(words, kinds, names, "position", "accepted")
    rows = tuple(
        (name, *(percent(kind.shares[number] if number < len(kind.shares) else None) for kind in kinds))
        for number, name in enumerate(names)
    )
    header = ("position", *(kind.name for kind in kinds))
    positions = Table("Acceptance by position", header, rows, note=" ".join(_notes(known)))
    keys = tuple(LegendKey(f"{kind.kind} fill", kind.name) for kind in kinds)
    figures, tables = (Figure(plot, keys),), (positions, _by_load(measured))
    return ReportSection("Drafts that were accepted", _acceptance_finding(known), figures, tables)


def categories(measured: MeasuredArms) -> ReportSection | None:
    """Returns acceptance by the category of the prompt; None for fewer than two categories."""
    known = [(arm, found) for arm in measured.arms if len(found := by_category(arm)) > 1]
    if not known:
        return None
    arm, found = known[0]
    ranked = sorted(found, key=lambda name: -(per_token(found[name]) or 0))
    names = [*ranked, *sorted({name for _, found in known for name in found} - set(ranked))]
    alone = len(known) == 1
    rows = tuple(
        (_named(name), *(() if alone else (arm.short,)), *_category(arm, found[name]))
        for name in names
        for arm, found in known
        if name in found
    )
    best, worst = (f"{_named(name)} ({percent(per_token(found[name]))})" for name in (ranked[0], ranked[-1]))
    whose = "" if alone else f" {arm.phrase}"
    header = ("category", *(() if alone else (measured.label,)), *_CATEGORY)
    return ReportSection(
        "Acceptance by category",
        f"Acceptance{whose} was highest for {best} and lowest for {worst}, counting draft tokens after "
        "accepted ones only.",
        (),
        (Table("By category, all loads together", header, rows, names=1 if alone else 2),),
    )


def _columns(arm: ReportArm, found: DraftAcceptance, *, alone: bool) -> Iterator[Columns]:
    reached = tuple(count / found.verifications for count in found.accepted_per_position)
    if alone:
        yield Columns("of those whose turn came", "drafts", found.by_position)
        yield Columns("of all drafts", "third", reached)
    else:
        yield Columns(f"{arm.name}, of those whose turn came", arm.kind, found.by_position)


def _acceptance_finding(known: list[tuple[ReportArm, DraftAcceptance]]) -> str:
    def of_each(words: Callable[[DraftAcceptance], str]) -> str:
        """Returns a number of each arm, with the arm's name if there are two."""
        return ", ".join(words(found) + (f" {arm.phrase}" if len(known) > 1 else "") for arm, found in known)

    accepted = of_each(lambda found: percent(per_token(found)))
    drafted = of_each(lambda found: f"{percent(found.rate)} of {found.drafted:,}")
    tokens = of_each(lambda found: plain(found.tokens_per_verification))
    return (
        f"Of the drafted tokens whose turn came, all before them accepted, {accepted} were accepted; "
        f"of all that were drafted, {drafted}. "
        f"Tokens that a round gave, the target's own one among them: {tokens}."
    )


def _notes(known: list[tuple[ReportArm, DraftAcceptance]]) -> Iterator[str]:
    if any(drafts.source == "metrics" for arm, _ in known for drafts in arm.drafts):
        yield "These are from the server's metrics, which include other clients' requests in that time."
    shortened = max(found.shortened for _, found in known)
    if shortened > 0.005:
        yield (
            f"{percent(shortened)} of the draft positions were empty (the end of an answer, a shorter K), "
            "which counts here as not accepted."
        )


def _category(arm: ReportArm, found: DraftAcceptance) -> tuple[str, ...]:
    share = per_token(found)
    return (
        bar([(arm.kind, share or 0)], f"{percent(share)} of those whose turn came"),
        percent(share),
        percent(found.rate),
        plain(found.tokens_per_verification),
        f"{found.drafted:,}",
    )


def _by_load(measured: MeasuredArms) -> Table:
    rows = []
    for load, arm, figures in measured.each():
        if figures.drafts:
            found = figures.drafts.acceptance
            per_round = found.drafted / found.verifications if found.verifications else None
            shares = percent(per_token(found)), percent(found.rate)
            tokens = plain(found.tokens_per_verification), plain(per_round)
            rows.append((*cells(load, arm), *shares, *tokens, f"{found.verifications:,}"))
    header = (*measured.header, "a token", "of drafted", "tokens a round", "drafted a round", "rounds")
    return Table("By load", header, tuple(rows), names=2)


def _named(category: str) -> str:
    return category or "(none)"


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
        shown = (with_interval(plain(speed.value if speed else None), speed, plain) for speed in speeds)
        rows.append((f"{load.value:g}", *shown, with_interval(times(ratio), ratio, "{:.2f}".format)))
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
