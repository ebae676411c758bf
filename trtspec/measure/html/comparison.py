"""Makes the report that compares two results, A and B."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.measure.bench.compare import BenchComparison
from trtspec.measure.bench.result import BenchResult
from trtspec.measure.html import sections
from trtspec.measure.html.arms import of_comparison
from trtspec.measure.html.document import Page, ReportSection, Table, Tile
from trtspec.measure.html.numbers import interval, percent, plain, times
from trtspec.measure.html.page import Facts, facts, when
from trtspec.measure.html.sections import Gain, Ratio, latencies


def comparison_page(comparison: BenchComparison) -> Page:
    """Returns the report of two results; they have at least one load in common."""
    measured, first, second = of_comparison(comparison), comparison.first, comparison.second
    ratios = tuple(Ratio(row.load, row.ratio) for row in comparison.rows if row.ratio)
    gain = Gain("B over A", "above 1x B is faster, below A", first.settings.confidence, ratios)
    same_targets = first.settings.targets == second.settings.targets
    name, other = (result.model.recipe or result.model.name for result in (first, second))
    parts = (
        sections.throughput(measured, gain),
        _speedups(comparison),
        *latencies(measured),
        sections.goodput(measured, first.settings.targets) if same_targets else None,
        sections.acceptance(measured),
        sections.categories(measured),
        sections.rounds(measured),
        sections.server(measured),
        sections.counts(measured),
        _differing(first, second),
    )
    return Page(
        title=f"A: {name}, B: {other}",
        subject=f"{when(first.settings.started)} and {when(second.settings.started)}",
        tone="open",
        verdict=_verdict(gain),
        because=_because(gain),
        advice=(
            f"A on its own: {first.verdict.words}.",
            f"B on its own: {second.verdict.words}.",
            "The two were not measured alternately: other work of the machine during either run is in "
            "these numbers too.",
        ),
        advice_title="To judge it by",
        hero=sections.gain_plot(gain) or sections.speed_plot(measured),
        tiles=tuple(_tiles(comparison)),
        sections=tuple(section for section in parts if section),
        facts=_same(first, second),
        warnings=tuple(f"They differ: {difference}." for difference in comparison.differences),
    )


def _verdict(gain: Gain) -> str:
    if not gain.ratios:
        return "Not known which is faster"
    if all(found.ratio.low > 1 for found in gain.ratios):
        return "B is faster"
    if all(found.ratio.high < 1 for found in gain.ratios):
        return "A is faster"
    if all(found.ratio.low <= 1 <= found.ratio.high for found in gain.ratios):
        return "No difference was found"
    return "It depends on the load which is faster"


def _because(gain: Gain) -> str:
    if not gain.ratios:
        return "No ratio has an interval; the tables have what was measured."
    ends = gain.ratios if len(gain.ratios) < 3 else (gain.ratios[0], gain.ratios[-1])
    ratios = ", ".join(f"{times(found.ratio)} ({interval(found.ratio)}) at {found.load}" for found in ends)
    is_rate = gain.ratios[0].load.kind == "rate"
    speed = "speed of A, by the mean time of a request" if is_rate else "tokens a second of A"
    return f"With drafts B has {ratios} the {speed}."


def _speedups(comparison: BenchComparison) -> ReportSection | None:
    """Returns the gain by drafts of each of the two; None if neither has one."""
    if not any(row.first.speedup or row.second.speedup for row in comparison.rows):
        return None
    rows = tuple(
        (f"{row.load.value:g}", name, times(level.speedup), interval(level.speedup))
        for row in comparison.rows
        for name, level in (("A", row.first), ("B", row.second))
    )
    sure = f"{comparison.first.settings.confidence:.0%} interval"
    header = (*of_comparison(comparison).header, "speed-up by drafts", sure)
    words = "Each run alternated with the same engine without drafts: this is the gain by drafts."
    return ReportSection("What drafts gain in each", words, (), (Table("Speed-up", header, rows, names=2),))


def _tiles(comparison: BenchComparison) -> Iterator[Tile]:
    row = comparison.rows[0]
    first, second = row.first.arms.speculative, row.second.arms.speculative
    if row.ratio:
        yield Tile(f"B over A at {row.load}", times(row.ratio), interval(row.ratio))
    one, other = (plain(arm.tokens_per_second.value) for arm in (first, second))
    yield Tile(f"Tokens/s at {row.load}", other, f"of B; {one} of A")
    if row.first.speedup or row.second.speedup:
        other, beside = times(row.second.speedup), f"of B; {times(row.first.speedup)} of A"
        yield Tile(f"Speed-up by drafts at {row.load}", other, beside)
    shares = [sections.whole(arm) for arm in of_comparison(comparison).arms]
    if any(shares):
        one, other = (percent(sections.per_token(share) if share else None) for share in shares)
        yield Tile("Acceptance of a token", other, f"of B; {one} of A")


def _differing(first: BenchResult, second: BenchResult) -> ReportSection | None:
    """Returns the differences between the settings of the two; None if there are none."""
    one, other = (
        {name: value for _, group in facts(result) for name, value in group} for result in (first, second)
    )
    rows = tuple(
        (name, one.get(name, ""), other.get(name, ""))
        for name in dict.fromkeys((*one, *other))
        if one.get(name) != other.get(name)
    )
    if not rows:
        return None
    table = Table("Servers, models, settings, machines", ("", "A", "B"), rows, names=3)
    same = "The rest was the same, and is listed below."
    return ReportSection("What differs between the runs", same, (), (table,))


def _same(first: BenchResult, second: BenchResult) -> tuple[tuple[str, Facts], ...]:
    others = {fact for _, group in facts(second) for fact in group}
    groups = ((name, tuple(fact for fact in group if fact in others)) for name, group in facts(first))
    return tuple((name, group) for name, group in groups if group)
