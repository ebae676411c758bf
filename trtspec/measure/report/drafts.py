"""Shows the acceptance of drafts: by position, by category, by load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from itertools import zip_longest

from trtspec.measure.bench.result import DraftAcceptance
from trtspec.measure.report import bars
from trtspec.measure.report.bars import Columns
from trtspec.measure.report.measured import MeasuredArms, ReportArm, cells
from trtspec.measure.report.numbers import percent, plain
from trtspec.measure.report.section import Figure, LegendKey, ReportSection, Table

_CATEGORY = ("accepted", "a token", "of drafted", "tokens a round", "drafted")


def together(parts: Iterable[DraftAcceptance]) -> DraftAcceptance:
    """Returns the sum of all counts."""
    return reduce(_add, parts, DraftAcceptance(0, 0, 0, ()))


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
    plot = bars.columns(
        "Acceptance by position; the table has the figures.", kinds, names, "position", "accepted"
    )
    rows = tuple(
        (name, *(percent(kind.shares[number] if number < len(kind.shares) else None) for kind in kinds))
        for number, name in enumerate(names)
    )
    positions = Table(
        "Acceptance by position",
        ("position", *(kind.name for kind in kinds)),
        rows,
        note=" ".join(_notes(known)),
    )
    keys = tuple(LegendKey(f"{kind.kind} fill", kind.name) for kind in kinds)
    return ReportSection(
        "Drafts that were accepted", _finding(known), (Figure(plot, keys),), (positions, _by_load(measured))
    )


def categories(measured: MeasuredArms) -> ReportSection | None:
    """Returns acceptance by the category of the prompt; None for fewer than two categories."""
    told = [(arm, by_category(arm)) for arm in measured.arms]
    known = [(arm, found) for arm, found in told if len(found) > 1]
    if not known:
        return None
    ranked = sorted(known[0][1], key=lambda name: -(per_token(known[0][1][name]) or 0))
    names = [*ranked, *sorted({name for _, found in known for name in found} - set(ranked))]
    alone = len(known) == 1
    rows = tuple(
        (_named(name), *(() if alone else (arm.short,)), *_category(arm, found[name]))
        for name in names
        for arm, found in known
        if name in found
    )
    best, worst = (
        f"{_named(name)} ({percent(per_token(known[0][1][name]))})" for name in (ranked[0], ranked[-1])
    )
    whose = "" if alone else f" {known[0][0].phrase}"
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


def _finding(known: list[tuple[ReportArm, DraftAcceptance]]) -> str:
    accepted, drafted, tokens = (
        _told(known, words)
        for words in (
            lambda found: percent(per_token(found)),
            lambda found: f"{percent(found.rate)} of {found.drafted:,}",
            lambda found: plain(found.tokens_per_verification),
        )
    )
    return (
        f"Of the drafted tokens whose turn came, all before them accepted, {accepted} were accepted; "
        f"of all that were drafted, {drafted}. "
        f"Tokens that a round gave, the target's own one among them: {tokens}."
    )


def _told(known: list[tuple[ReportArm, DraftAcceptance]], words: Callable[[DraftAcceptance], str]) -> str:
    """Returns a number of each arm, with the arm's name if there are two."""
    return ", ".join(words(found) + (f" {arm.phrase}" if len(known) > 1 else "") for arm, found in known)


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
        bars.share(share or 0, arm.kind, f"{percent(share)} of those whose turn came"),
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
            rows.append(
                (
                    *cells(load, arm),
                    percent(per_token(found)),
                    percent(found.rate),
                    plain(found.tokens_per_verification),
                    plain(per_round),
                    f"{found.verifications:,}",
                )
            )
    header = (*measured.header, "a token", "of drafted", "tokens a round", "drafted a round", "rounds")
    return Table("By load", header, tuple(rows), names=2)


def _named(category: str) -> str:
    return category or "(none)"


def _add(one: DraftAcceptance, other: DraftAcceptance) -> DraftAcceptance:
    return DraftAcceptance(
        one.verifications + other.verifications,
        one.drafted + other.drafted,
        one.accepted + other.accepted,
        tuple(
            a + b for a, b in zip_longest(one.accepted_per_position, other.accepted_per_position, fillvalue=0)
        ),
    )
