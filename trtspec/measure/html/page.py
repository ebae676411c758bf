"""Makes the report of one result. It assumes that the reader has read nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timezone

from trtspec.base.units import gib
from trtspec.measure.bench.result import BenchResult
from trtspec.measure.html import sections
from trtspec.measure.html.arms import ReportArm, at_most, between, of_result
from trtspec.measure.html.document import Page, Tile
from trtspec.measure.html.numbers import duration, interval, percent, plain, times
from trtspec.measure.html.sections import by_category, in_words, latencies, per_token, whole

Facts = tuple[tuple[str, str], ...]

_PLAIN_BY = {
    "request": "the same server, asked for num_draft_tokens 0",
    "baseline": "another server",
    "none": "not measured",
}


def facts(result: BenchResult) -> tuple[tuple[str, Facts], ...]:
    """Returns groups of names and values, without unknown values."""
    server, model, workload = result.server, result.model, result.workload
    settings, machine = result.settings, result.machine
    without = _PLAIN_BY[server.plain_by]
    groups: dict[str, dict[str, object]] = {
        "Server and model": {
            "address": server.url,
            "API": {"triton": "Triton's", "openai": "OpenAI's"}[server.api],
            "software": server.software,
            "without drafts": f"{without}, {server.baseline_url}" if server.baseline_url else without,
            "model": model.name,
            "recipe": model.recipe,
            "target": model.target,
            "draft": model.draft,
            "K of the server": model.num_draft_tokens,
        },
        "Workload": {
            "workload": workload.name,
            "source": workload.source,
            "prompts": f"{workload.prompts:,}",
            "categories": ", ".join(f"{name or '(none)'} {n}" for name, n in workload.categories.items()),
            "digest": workload.digest,
        },
        "Settings": {
            "started": when(settings.started),
            "trtspec": settings.version,
            "load by": settings.load_generator,
            "pairs of blocks": f"{settings.pairs}, of {settings.block_requests} requests each",
            "warm-up": f"{settings.warm_up} requests",
            "longest answer": f"{settings.max_tokens} tokens",
            "temperature": f"{settings.temperature:g}",
            "seed": settings.seed,
            "chat": "yes" if settings.chat else "no",
            "K asked for": settings.num_draft_tokens,
            "intervals": f"{percent(settings.confidence)} confidence",
            "latency target": in_words(settings.targets),
        },
        "Machine that measured": {
            "processor": f"{machine.processor}, {machine.cores} cores",
            "memory": gib(machine.memory),
            "GPUs": ", ".join(machine.gpus) or "none",
            "system": machine.system,
            "Python": machine.python,
        },
    }
    return tuple(
        (name, tuple((fact, str(value)) for fact, value in group.items() if value not in (None, "")))
        for name, group in groups.items()
    )


def when(started: str) -> str:
    """Returns an ISO 8601 time as day and minute, 2026-11-22 20:15 UTC; other text unchanged."""
    try:
        return f"{datetime.fromisoformat(started).astimezone(timezone.utc):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return started


GOOD, POOR = 0.6, 0.5
"""Conditional acceptance of a draft token: the value to aim for, and the value below which drafts may not
pay."""
_ENOUGH = 20
"""With fewer drafts than this, a category is not judged."""
TONES = {"on": "good", "up_to": "mixed", "off": "bad", "undecided": "open", "unmeasured": "open"}


def page(result: BenchResult) -> Page:
    """Returns the report of a result, which has at least one level."""
    measured, gain = of_result(result), sections.gain_of(result)
    parts = (
        sections.throughput(measured, gain),
        *latencies(measured),
        sections.goodput(measured, result.settings.targets),
        sections.acceptance(measured),
        sections.categories(measured),
        sections.rounds(measured),
        sections.server(measured),
        sections.counts(measured),
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
        hero=sections.gain_plot(gain) or sections.speed_plot(measured),
        tiles=tuple(_tiles(result)),
        sections=tuple(section for section in parts if section),
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
    if found := sections.whole(measured.arms[0]):
        words = f"of all drafted {percent(found.rate)}; {plain(found.tokens_per_verification)} tokens a round"
        yield Tile("Acceptance of a token", percent(sections.per_token(found)), words)
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
