"""Prints the result of a verification, for people."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from trtspec.cli.terminal.output import out
from trtspec.measure.verify.result import Difference, GreedyComparison, Sampling, VerifyResult

_SHOWN, _NAMED = 8, 2
"""How many differences of a kind are shown, and in how many ways each was found; the others are counted."""


def print_result(result: VerifyResult) -> None:
    """Prints the tables, each difference once, and the verdict in one sentence."""
    bound, noise = result.tolerance, result.noise
    ways = [noise, *result.comparisons, *filter(None, (result.second_opinion,))]
    out.result(f"plain decoding  {result.plain}")
    if result.speculative != result.plain:
        out.result(f"with drafts     {result.speculative}")
    out.sentence(f"near ties       up to {bound.value:.2g} nats: {bound.reason}")
    out.result()
    header = ("greedy", "alike", "near ties", "faults", "moved", "accepted")
    out.table([_row(way, is_noise=way is noise) for way in ways], header=header)
    _print_differences(result, ways)
    if result.sampling:
        out.result()
        _print_sampling(result.sampling)
    out.result()
    out.sentence(verdict(result))


def verdict(result: VerifyResult) -> str:
    """Returns the verdict in one sentence."""
    if not result.is_lossless:
        return f"not proved lossless: {'; '.join(result.reasons)}"
    count = sum(way.texts for way in result.comparisons)
    parted = sum(len(way.near_ties) for way in result.comparisons)
    if not parted:
        said = f"lossless: all {count} greedy answers with drafts are the same as the target's alone"
    else:
        by_itself = f"{len(result.noise.near_ties)} of {result.noise.texts}"
        said = (
            f"lossless except for rounding: {count - parted} of {count} greedy answers with drafts are the "
            f"same as the target's alone, and {parted} differ from a near tie on, as {by_itself} of plain "
            "decoding do"
        )
    if result.sampling and any(view.tells for view in result.sampling.views):
        said += ", and sampled text has the same distribution"
    elif result.sampling:
        said += "; too few of the sampled continuations differ to compare distributions"
    return said


def _row(way: GreedyComparison, *, is_noise: bool) -> tuple[str, ...]:
    parted = len({difference.prompt for difference in way.differences})
    accepted = ""
    if way.drafted:
        accepted = f"{(way.accepted or 0) / way.drafted:.0%} of {way.drafted}"
    return (
        _name(way) + (", the noise" if is_noise else ""),
        f"{way.texts - parted} of {way.texts}",
        str(len(way.near_ties)),
        str(len(way.faults)),
        "unknown" if way.moved is None else f"{way.moved:.1e}",
        accepted,
    )


def _name(way: GreedyComparison) -> str:
    if way.by:
        return f"{way.by}, one by one" if way.concurrency == 1 else f"{way.by}, {way.concurrency} at once"
    lengths = {None: "K as deployed", 0: "plain"}
    length = lengths.get(way.num_draft_tokens, f"K={way.num_draft_tokens}")
    return f"{length}, {'one by one' if way.concurrency == 1 else f'{way.concurrency} at once'}"


def _print_differences(result: VerifyResult, ways: Iterable[GreedyComparison]) -> None:
    """Prints the differences, faults first; a difference found in several ways is printed once."""
    where: dict[tuple[object, ...], tuple[Difference, list[GreedyComparison]]] = {}
    for difference in result.prompts:
        where[_key(difference)] = difference, []
    for way in ways:
        for difference in way.differences:
            where.setdefault(_key(difference), (difference, []))[1].append(way)
    for kind in ("fault", "near tie"):
        found = [both for both in where.values() if both[0].kind == kind]
        for difference, own in found[:_SHOWN]:
            _print_difference(difference, own, result)
        if len(found) > _SHOWN:
            out.result()
            out.result(f"and {len(found) - _SHOWN} more of this kind: --json has them all")


def _key(difference: Difference) -> tuple[object, ...]:
    said = difference.expected, difference.found
    numbers = difference.what == "numbers"
    return (
        difference.kind,
        difference.prompt,
        difference.what,
        difference.position,
        *(() if numbers else said),
    )


def _print_difference(difference: Difference, ways: list[GreedyComparison], result: VerifyResult) -> None:
    named = [*map(_name, ways[:_NAMED]), *([f"{len(ways) - _NAMED} more"] if len(ways) > _NAMED else [])]
    names = f" ({'; '.join(named)})" if named else ""
    unit = "character" if difference.what == "text" else "token"
    out.result()
    out.result(f"{difference.kind}  {difference.prompt}, {unit} {difference.position}{names}")
    out.result(f"  after     {difference.context!r}")
    out.result(f"  expected  {difference.expected}")
    out.result(f"  found     {difference.found}")
    out.result(f"  {difference.meaning}")
    if difference.kind == "fault" and result.command:
        out.result(f"  again: {_again(difference, ways, result.command)}")


def _again(difference: Difference, ways: list[GreedyComparison], command: str) -> str:
    """Returns the command that repeats this prompt alone, with the Ks that differed."""
    lengths = {way.num_draft_tokens for way in ways if not way.by} - {None, 0}
    options = [f"--num-draft-tokens {length}" for length in sorted(filter(None, lengths))]
    return " ".join([command, "--prompt", shlex.quote(difference.prompt), *options, "--draws 0"])


def _print_sampling(sampling: Sampling) -> None:
    out.sentence(
        f"sampling at temperature {sampling.temperature:g}: {sampling.draws} continuations of"
        f" {sampling.tokens} tokens with drafts, and as many without"
    )
    rows: list[tuple[object, ...]] = []
    for view in sampling.views:
        for draws in view.prompts:
            if draws.outcomes > 1:
                figures = draws.outcomes, f"{draws.distance:.3f}", f"{draws.p_value:.2g}"
                rows.append((view.of, draws.prompt, *figures, draws.most_different))
        bound = f"a fault below {sampling.limit:.2g}"
        rows.append((view.of, "all together", "", "", f"{view.p_value:.2g}", bound))
    out.table(rows, header=("by", "prompt", "outcomes", "variation", "p", "most different"))
    for view in sampling.views:
        if not view.tells:
            out.sentence(f"by {view.of}, too few continuations differ to find anything but gross faults")
            continue
        out.sentence(
            f"by {view.of}, a total variation of {view.found_everywhere:.2f} in each of these prompts, or of"
            f" {view.found_in_one:.2f} in one, would have been found {sampling.power:.0%} of the time"
        )
