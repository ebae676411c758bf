"""Shows a proof: on a terminal of 80 columns, as Markdown for a pull request, and as a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from trtspec.cli.terminal.output import out
from trtspec.measure.bench.result import BenchResult
from trtspec.measure.html import sections
from trtspec.measure.html.arms import MeasuredArms, of_result, of_servers
from trtspec.measure.html.document import Page, ReportSection, Table, Tile
from trtspec.measure.html.numbers import NOTHING, interval, percent, plain, times
from trtspec.measure.html.page import facts, when
from trtspec.measure.prove.proof import TOGETHER, Outcome, Proof, same_words
from trtspec.measure.verify.result import CaseResult, Difference, VerifyResult

_TONES: dict[Outcome, str] = {"proven": "good", "refuted": "bad", "open": "open"}
_TITLES: dict[Outcome, str] = {"proven": "Proven", "refuted": "Refuted", "open": "Not proven"}
_SHOWN = 5
"""How many differences are shown; the JSON has them all."""
Rows = list[tuple[str, ...]]


def speed_rows(proof: Proof) -> tuple[tuple[str, ...], Rows]:
    """Returns the header and a row for each load."""
    rows = []
    for level in proof.bench.levels:
        old, new = level.arms.plain, level.arms.speculative
        speeds = [plain(arm.tokens_per_second.value) if arm else NOTHING for arm in (old, new)]
        failed = new.failed + (old.failed if old else 0)
        costs = [f"${plain(cost)}" if cost else NOTHING for cost in proof.cost(level)]
        ratio = times(level.speedup), interval(level.speedup)
        rows.append(
            (f"{level.load.value:g}", *speeds, *ratio, str(failed), *(costs if proof.wanted.prices else ()))
        )
    header = ("streams", "tokens/s", "new", "new/old", f"{TOGETHER:.0%} interval", "failed")
    return (*header, *(("$/M tokens", "new") if proof.wanted.prices else ())), rows


def check_rows(proof: Proof) -> Rows:
    """Returns each thing that was looked at, and what was found."""
    sampled, found_in_samples = _sampled(proof.texts)
    rows = [
        ("greedy text", *_greedy(proof)),
        ("sampled text", sampled if proof.wanted.is_equal else "", found_in_samples),
    ]
    rows += [("doubt", "open", doubt) for doubt in (proof.texts.doubts if proof.texts else ())]
    if found := proof.accuracy:
        words = f"{found.both + found.only_new} of {found.questions}, {found.both + found.only_old} before"
        rows.append(("right answers", "", words))
    old, new = (percent(each.rate) if each else "none" for each in proof.acceptance)
    if proof.acceptance != (None, None):
        rows.append(("accepted drafts", "", f"{new}, {old} before"))
    elif proof.texts and proof.texts.subject == "drafts" and proof.bench.levels:
        rows.append(("accepted drafts", "", "nothing was drafted while the speed was measured"))
    return [*rows, *((f"case {case.name}", case.state, _of_case(case)) for case in _cases(proof))]


def _cases(proof: Proof) -> Sequence[CaseResult]:
    return proof.texts.cases if proof.texts else ()


def _of_case(case: CaseResult) -> str:
    return case.found or case.finds


def _greedy(proof: Proof) -> tuple[str, str]:
    texts = proof.texts
    if texts is None:
        return "left out", proof.left_out
    count = sum(way.texts for way in texts.comparisons)
    different = [one for way in texts.comparisons for one in way.differences if one.what == "tokens"]
    faults = sum(len(way.faults) for way in texts.comparisons)
    said = f"{count - len(different)} of {count} alike, {len(different)} part"
    if not proof.wanted.is_equal:
        first = (
            f", the median one at token {median(one.position for one in different):.0f}" if different else ""
        )
        return "", said + first
    ties = len(different) - sum(one.kind == "fault" for one in different)
    return ("fault" if faults else "ok"), f"{said}, {ties} of them at a near tie"


def _sampled(texts: VerifyResult | None) -> tuple[str, str]:
    if texts is None or texts.sampling is None:
        return "left out", "no samples were drawn"
    found = texts.sampling
    if not any(view.tells for view in found.views):
        return "left out", "too few of the samples differ to compare distributions"
    far = max(draws.distance for view in found.views for draws in view.prompts)
    least = min(view.least for view in found.views)
    words = f"p {least:.2g} ({found.limit:.2g} is a fault), total variation up to {far:.3f}"
    return ("fault" if found.is_fault else "ok"), words


def _differences(proof: Proof) -> list[Difference]:
    """Returns the differences to look at, each once, faults first."""
    if proof.texts is None:
        return []
    ways = (proof.texts.noise, *proof.texts.comparisons)
    known = {(one.prompt, one.what, one.position): one for way in ways for one in way.differences}
    known |= {(one.prompt, one.what, one.position): one for one in proof.texts.prompts}
    return sorted(known.values(), key=lambda one: one.kind == "near tie")


@dataclass(frozen=True, slots=True)
class ShownProof:
    """A proof."""

    proof: Proof

    def tell(self) -> None:
        """Prints both servers, the speed at each load, every check, and the verdict in a sentence."""
        proof = self.proof
        out.sentence(f"old  {proof.old}")
        out.sentence(f"new  {proof.new}")
        out.result()
        header, rows = speed_rows(proof)
        if rows:
            out.table(rows, header)
            out.result()
        out.table(check_rows(proof), ("check", "state", "found"))
        faults = [each for each in _differences(proof) if each.kind == "fault" and proof.wanted.is_equal]
        for one in faults[:_SHOWN]:
            out.result()
            out.sentence(f"fault  {one.prompt}, {one.what} {one.position}, after {one.context!r}:")
            out.sentence(f"{one.found} in place of {one.expected}: {one.meaning}")
        out.result()
        out.sentence(proof.words)

    def as_json(self) -> Any:
        return self.proof.as_json()


def as_markdown(proof: Proof) -> str:
    """Returns the verdict and the tables, as a comment of a pull request has them."""
    header, rows = speed_rows(proof)
    because = proof.words.partition(": ")[2]
    parts = [
        f"### {_TITLES[proof.outcome]}: `{_code(proof.old)}` to `{_code(proof.new)}`",
        _cell(because[:1].upper() + because[1:]) + ".",
        _table(header, rows, numbers=True) if rows else "No speed was measured.",
        "<details><summary>What was looked at</summary>",
        _table(("check", "", "found"), check_rows(proof)),
        "</details>",
        "".join(f"> {_cell(note)}\n" for note in proof.bench.verdict.notes).rstrip(),
        f"<sub>By trtspec {proof.bench.settings.version}, with `{_code(proof.command)}`</sub>",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(header: Sequence[str], rows: Rows, *, numbers: bool = False) -> str:
    line = "|".join("---:" if numbers else "---" for _ in header)
    cells = (f"| {' | '.join(map(_cell, row))} |" for row in (header, *rows))
    first, *others = cells
    return "\n".join((first, f"|{line}|", *others))


def _cell(text: str) -> str:
    """Returns a text that Markdown shows as it is, in a line: servers and models have their say in it."""
    escaped = "".join(f"\\{char}" if char in "\\`*_[]<>|#~@" else char for char in " ".join(text.split()))
    return escaped.replace("://", ":\\//")


def _code(text: str) -> str:
    return " ".join(text.replace("`", "'").split())


def proof_page(proof: Proof) -> Page:
    """Returns the page of a proof."""
    bench = proof.bench
    is_one = proof.texts is not None and proof.texts.subject == "drafts"
    measured = of_result(bench) if is_one else of_servers(bench)
    gain = replace(
        sections.gain_of(bench),
        title="new / old",
        meaning="above 1x the new server is faster",
        break_even=None,
    )
    has_speed = bool(bench.levels)
    parts = (
        _checks(proof),
        _found(proof),
        sections.throughput(measured, gain) if has_speed else None,
        _costs(proof),
        *(sections.latencies(measured) if has_speed else ()),
        sections.acceptance(measured) if has_speed else None,
        sections.categories(measured) if has_speed else None,
        sections.counts(measured) if has_speed else None,
    )
    return Page(
        title=f"{proof.old} → {proof.new}",
        subject=" · ".join(filter(None, (f"on {bench.workload.name}", when(bench.settings.started)))),
        tone=_TONES[proof.outcome],
        verdict=_TITLES[proof.outcome],
        because=proof.words.partition(": ")[2] + ".",
        advice=(),
        hero=sections.gain_plot(gain),
        tiles=tuple(_tiles(proof, measured)),
        sections=tuple(part for part in parts if part),
        facts=_facts(proof, bench),
        command=proof.command,
        warnings=bench.verdict.notes,
    )


def _tiles(proof: Proof, measured: MeasuredArms) -> Iterator[Tile]:
    levels = proof.bench.levels
    for level in (*levels[:1], *levels[1:][-1:]):
        yield Tile(f"New over old at {level.load}", times(level.speedup), interval(level.speedup))
    if proof.acceptance[1]:
        old, new = (percent(each.rate) if each else "no drafts" for each in proof.acceptance)
        yield Tile("Drafts accepted", new, f"{old} before")
    if _cases(proof):
        passed = sum(case.state == "ok" for case in _cases(proof))
        skipped = sum(case.state == "skipped" for case in _cases(proof))
        yield Tile("Cases passed", str(passed), f"of {len(_cases(proof))}; {skipped} skipped")


def _checks(proof: Proof) -> ReportSection:
    texts = proof.texts
    finding = proof.left_out if texts is None else "; ".join(texts.reasons) or same_words(texts)
    if not proof.wanted.is_equal:
        finding = "the texts may differ: how much they do is told, and right answers are compared"
    table = Table("Every check", ("check", "", "found"), tuple(check_rows(proof)), names=3)
    return ReportSection("Texts", finding[:1].upper() + finding[1:] + ".", (), (table,))


def _found(proof: Proof) -> ReportSection | None:
    found = _differences(proof)
    if not found:
        return None
    rows = tuple(
        (one.prompt, one.kind, str(one.position), one.context, one.expected, one.found, one.meaning)
        for one in found[: 4 * _SHOWN]
    )
    header = ("prompt", "kind", "at", "after", "old", "new", "meaning")
    words = (
        f"{len(found)} places, faults first; a near tie is a place where rounding decides between two tokens."
    )
    return ReportSection("Where texts part", words, (), (Table("Differences", header, rows, names=7),))


def _costs(proof: Proof) -> ReportSection | None:
    if proof.wanted.prices is None:
        return None
    rows = tuple(
        (f"{level.load.value:g}", *(f"${plain(cost)}" if cost else NOTHING for cost in proof.cost(level)))
        for level in proof.bench.levels
    )
    old, new = proof.wanted.prices
    words = f"The old server costs ${old:g} an hour, the new one ${new:g}."
    table = Table("Dollars for a million tokens", ("streams", "old", "new"), rows)
    return ReportSection("Cost", words, (), (table,))


def _facts(proof: Proof, bench: BenchResult) -> tuple[tuple[str, tuple[tuple[str, str], ...]], ...]:
    servers: list[tuple[str, str]] = [("old", proof.old), ("new", proof.new)]
    if bench.server.software:
        servers.append(("software of the new", bench.server.software))
    if proof.texts:
        bound = proof.texts.tolerance
        servers.append(("near ties", f"up to {bound.value:.2g} nats: {bound.reason}"))
    return ("Servers", tuple(servers)), *facts(bench)[1:]
