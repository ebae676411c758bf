"""Makes the report of one result. It assumes that the reader has read nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.measure.bench.result import BenchResult
from trtspec.measure.report import drafts, requests, speed
from trtspec.measure.report.document import Page, Tile
from trtspec.measure.report.drafts import by_category, per_token, whole
from trtspec.measure.report.facts import facts, when
from trtspec.measure.report.latency import latencies
from trtspec.measure.report.measured import ReportArm, at_most, between, of_result
from trtspec.measure.report.numbers import duration, interval, percent, plain, times

GOOD, POOR = 0.6, 0.5
"""Conditional acceptance of a draft token: the value to aim for, and the value below which drafts may not
pay."""
_ENOUGH = 20
"""With fewer drafts than this, a category is not judged."""
TONES = {"on": "good", "up_to": "mixed", "off": "bad", "undecided": "open", "unmeasured": "open"}


def page(result: BenchResult) -> Page:
    """Returns the report of a result, which has at least one level."""
    measured, gain = of_result(result), speed.gain_of(result)
    sections = (
        speed.throughput(measured, gain),
        *latencies(measured),
        requests.goodput(measured, result.settings.targets),
        drafts.acceptance(measured),
        drafts.categories(measured),
        requests.rounds(measured),
        requests.server(measured),
        requests.counts(measured),
    )
    model, words = result.model, result.verdict.words
    pair = f"{model.target} drafted by {model.draft}" if model.target and model.draft else model.target
    subject = (pair, f"on {result.workload.name}", when(result.settings.started))
    return Page(
        title=model.recipe or model.name,
        subject=" · ".join(part for part in subject if part),
        tone=TONES[result.verdict.decision],
        verdict=headline(result),
        because=words[:1].upper() + words[1:] + ("" if words.endswith((".", "!", "?")) else "."),
        advice=advice(result),
        hero=speed.gain_plot(gain) or speed.speed_plot(measured),
        tiles=tuple(_tiles(result)),
        sections=tuple(section for section in sections if section),
        facts=facts(result),
        command=result.settings.command,
        warnings=warnings(result),
    )


def _tiles(result: BenchResult) -> Iterator[Tile]:
    first = result.levels[0]
    ours, without = first.arms.speculative, first.arms.plain
    if first.speedup:
        ends = f"{interval(first.speedup)} ({result.settings.confidence:.0%})"
        yield Tile(f"Speed-up at {first.load}", times(first.speedup), ends)
    if (even := result.verdict.break_even) is not None:
        yield Tile("Break-even", between([first.load], even), "above it drafts cost time")
    beside = f"{plain(without.tokens_per_second.value)} without drafts" if without else ""
    yield Tile(f"Tokens/s at {first.load}", plain(ours.tokens_per_second.value), beside)
    if ours.time_to_first_token:
        other = without.time_to_first_token if without else None
        beside = f"{duration(other.p50)} without drafts" if other else "in the median"
        yield Tile(f"First text at {first.load}", duration(ours.time_to_first_token.p50), beside)
    measured = of_result(result)
    if found := drafts.whole(measured.arms[0]):
        words = f"of all drafted {percent(found.rate)}; {plain(found.tokens_per_verification)} tokens a round"
        yield Tile("Acceptance of a token", percent(drafts.per_token(found)), words)
    asked = sum(figures.requests for _, _, figures in measured.each())
    failed = sum(figures.failed for _, _, figures in measured.each())
    yield Tile("Requests failed", f"{failed:,}", f"of {asked:,}")


def headline(result: BenchResult) -> str:
    """Returns the answer in a few words."""
    return _answer(result)[0]


def advice(result: BenchResult) -> tuple[str, ...]:
    """Returns what to do, the most important first."""
    return (*filter(None, _answer(result)[1:]), *_drafts(of_result(result).arms[0]))


def _answer(result: BenchResult) -> tuple[str, str]:
    """Returns the answer in a few words, and what to do about it."""
    verdict, loads = result.verdict, of_result(result).loads
    known = [(level.load, level.speedup) for level in result.levels if level.speedup]
    if verdict.decision == "on":
        highest = max((load for load, _ in known), key=lambda load: load.value, default=loads[-1])
        what = f"Leave drafts on. The highest measured load is {highest}; measure again if you expect more."
        if len(known) < len(loads):
            return f"Worth it, at {len(known)} of the {len(loads)} loads that were measured", what
        return "Worth it, at every load that was measured", what
    if verdict.decision == "up_to":
        if verdict.switch_off_above is None:
            return "Worth it at low load", ""
        limit = at_most(loads, verdict.switch_off_above)
        return f"Worth it, up to {limit}", (
            f"Use drafts up to {limit}, and plain decoding (num_draft_tokens: 0) above"
            + ("; " if verdict.break_even else ", where no difference was found; ")
            + "trtspec's adaptive policy (speculation.policy: adaptive) shortens drafts as load grows."
        )
    if verdict.decision == "off":
        return "Not worth it as it is", (
            "Serve without drafts (num_draft_tokens: 0), until another draft or another K does better: "
            "trtspec tune searches for one."
        )
    if verdict.decision == "undecided" and any(ratio.low > 1 or ratio.high < 1 for _, ratio in known):
        return "It depends on the load", (
            "Use drafts at loads whose whole interval is above 1x, and plain decoding (num_draft_tokens: 0) "
            "at loads whose interval is below. Measure for longer (more pairs of blocks) if 1x is within "
            "the interval."
        )
    if verdict.decision == "undecided":
        return "Not clear yet", (
            "Measure for longer (more pairs of blocks), or on an otherwise idle machine: the differences "
            "are within its noise."
        )
    if any(level.arms.plain for level in result.levels):
        why = "Measure again: the notes say why no load has a speed-up, and how to repair that."
        return "Not known: no speed-up can be stated", why
    return "Not known: nothing was measured without drafts", (
        "Measure again with --baseline and the address of the same model without drafts: without it the "
        "gain is unknown."
    )


def _drafts(arm: ReportArm) -> Iterator[str]:
    found = whole(arm)
    if not found:
        return
    mean = per_token(found)
    if mean is not None and mean < GOOD:
        cost = ", and under 50% the drafts' own cost can eat the gain" if mean < POOR else ""
        yield (
            f"If all draft tokens before it were accepted, a draft token is accepted in {percent(mean)} of "
            f"cases; aim for 60%{cost}. trtspec distill trains the draft on the target's own answers, and "
            "trtspec tune tries other drafts."
        )
    poor = [
        f"{name or 'prompts without a category'} ({percent(share)})"
        for name, of_name in by_category(arm).items()
        if of_name.verifications >= _ENOUGH and (share := per_token(of_name)) is not None and share < POOR
    ]
    if poor and not (mean is not None and mean < POOR):
        yield (
            f"Few drafts are accepted for {', '.join(poor)}: send such requests without drafts, or distill "
            "the draft on such prompts."
        )


def warnings(result: BenchResult) -> tuple[str, ...]:
    """Returns what weakens the result."""
    partial = "The run was stopped early; this report has the measurements so far."
    return (partial, *result.verdict.notes) if result.is_partial else result.verdict.notes
