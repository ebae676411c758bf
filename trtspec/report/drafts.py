"""How well the drafts did: by position, by category, by load."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import reduce
from itertools import zip_longest

from trtspec.bench.result import Acceptance, Drafts, Result
from trtspec.report import bars, columns, loads
from trtspec.report.columns import Columns
from trtspec.report.numbers import percent, plain
from trtspec.report.section import Figure, Key, Section, Table

_NO_CATEGORY = "(none)"
_BY_METRICS = "By the server's metrics, which count what others asked meanwhile too."


def drafts_of(result: Result) -> Iterator[Drafts]:
    """Yields what is known of the drafts of each load."""
    for level in result.levels:
        drafts = level.arms.speculative.drafts
        if drafts and drafts.acceptance.verifications:
            yield drafts


def together(parts: Iterable[Acceptance]) -> Acceptance:
    """Returns the counts of all of them in one."""
    return reduce(_add, parts, Acceptance(0, 0, 0, ()))


def per_token(found: Acceptance) -> float | None:
    """Returns the share accepted of the tokens whose turn came, since all before them were accepted."""
    reached = found.verifications + sum(found.accepted_per_position[:-1])
    return sum(found.accepted_per_position) / reached if reached else None


def acceptance(result: Result) -> Section | None:
    """Returns how often drafts were accepted, by position and by load; None where nothing tells."""
    known = list(drafts_of(result))
    if not known:
        return None
    whole = together(drafts.acceptance for drafts in known)
    reached = tuple(count / whole.verifications for count in whole.accepted_per_position)
    names = tuple(str(number + 1) for number in range(len(reached)))
    kinds = (
        Columns("of those whose turn came", "drafts", whole.by_position),
        Columns("of all drafts", "third", reached),
    )
    plot = columns.draw(
        "Acceptance by position; the table has the figures.", kinds, names, "position", "accepted"
    )
    positions = tuple(
        (name, percent(conditional), percent(share), f"{count:,}")
        for name, conditional, share, count in zip(
            names, whole.by_position, reached, whole.accepted_per_position, strict=True
        )
    )
    finding = (
        "A drafted token whose turn came, all before it accepted, was accepted in "
        f"{percent(per_token(whole))} of cases; of all {whole.drafted:,} that were drafted "
        f"{percent(whole.rate)} were. A round gave "
        f"{plain(whole.tokens_per_verification)} tokens, the target's own one among them."
    )
    note = _BY_METRICS if any(drafts.source == "metrics" for drafts in known) else ""
    if whole.shortened > 0.005:
        note += (
            f" {percent(whole.shortened)} of the places of drafts were left empty (the end of an answer, "
            "a shorter K), which counts here as not accepted."
        )
    by_position = Table(
        "Acceptance by position",
        ("position", "of those whose turn came", "of all drafts", "tokens"),
        positions,
        note=note.strip(),
    )
    keys = tuple(Key(f"{kind.kind} fill", kind.name) for kind in kinds)
    return Section(
        "Drafts that were accepted", finding, (Figure(plot, keys),), (by_position, _by_load(result))
    )


def categories(result: Result) -> Section | None:
    """Returns acceptance by the category of the prompt; None where there are not two of them."""
    known = list(drafts_of(result))
    names = sorted({name for drafts in known for name in drafts.by_category})
    if len(names) < 2:
        return None
    merged = {
        name: together(drafts.by_category[name] for drafts in known if name in drafts.by_category)
        for name in names
    }
    ranked = sorted(merged.items(), key=lambda item: -(per_token(item[1]) or 0))
    rows = tuple(
        (
            name or _NO_CATEGORY,
            bars.share(
                per_token(found) or 0, "drafts", f"{percent(per_token(found))} of those whose turn came"
            ),
            percent(per_token(found)),
            percent(found.rate),
            plain(found.tokens_per_verification),
            f"{found.drafted:,}",
        )
        for name, found in ranked
    )
    (best, most), (worst, least) = ranked[0], ranked[-1]
    finding = (
        f"Of the tokens whose turn came, most were accepted for {best or _NO_CATEGORY} "
        f"({percent(per_token(most))}), fewest for {worst or _NO_CATEGORY} ({percent(per_token(least))})."
    )
    header = ("category", "accepted", "a token", "of drafted", "tokens a round", "drafted")
    return Section(
        "Acceptance by category", finding, (), (Table("By category, all loads together", header, rows),)
    )


def _by_load(result: Result) -> Table:
    rows = []
    for level in result.levels:
        drafts = level.arms.speculative.drafts
        if drafts:
            found = drafts.acceptance
            per_round = found.drafted / found.verifications if found.verifications else None
            rows.append(
                (
                    loads.cell(level),
                    percent(per_token(found)),
                    percent(found.rate),
                    plain(found.tokens_per_verification),
                    plain(per_round),
                    f"{found.verifications:,}",
                )
            )
    header = (
        loads.header(result.levels),
        "a token",
        "of drafted",
        "tokens a round",
        "drafted a round",
        "rounds",
    )
    return Table("By load", header, tuple(rows))


def _add(one: Acceptance, other: Acceptance) -> Acceptance:
    return Acceptance(
        one.verifications + other.verifications,
        one.drafted + other.drafted,
        one.accepted + other.accepted,
        tuple(
            a + b for a, b in zip_longest(one.accepted_per_position, other.accepted_per_position, fillvalue=0)
        ),
    )
