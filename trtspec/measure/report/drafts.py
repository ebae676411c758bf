"""Shows the acceptance of drafts: by position, by category, by load."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest

from trtspec.measure.bench.result import DraftAcceptance
from trtspec.measure.report.document import Figure, LegendKey, ReportSection, Table
from trtspec.measure.report.measured import MeasuredArms, ReportArm, cells
from trtspec.measure.report.numbers import percent, plain
from trtspec.measure.report.plot import Columns, bar, columns

_CATEGORY = ("accepted", "a token", "of drafted", "tokens a round", "drafted")


def together(parts: Iterable[DraftAcceptance]) -> DraftAcceptance:
    """Returns the sum of all counts."""
    told = list(parts)
    positions = zip_longest(*(one.accepted_per_position for one in told), fillvalue=0)
    return DraftAcceptance(
        sum(one.verifications for one in told),
        sum(one.drafted for one in told),
        sum(one.accepted for one in told),
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
    return ReportSection("Drafts that were accepted", _finding(known), figures, tables)


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


def _finding(known: list[tuple[ReportArm, DraftAcceptance]]) -> str:
    def told(words: Callable[[DraftAcceptance], str]) -> str:
        """Returns a number of each arm, with the arm's name if there are two."""
        return ", ".join(words(found) + (f" {arm.phrase}" if len(known) > 1 else "") for arm, found in known)

    accepted = told(lambda found: percent(per_token(found)))
    drafted = told(lambda found: f"{percent(found.rate)} of {found.drafted:,}")
    tokens = told(lambda found: plain(found.tokens_per_verification))
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
