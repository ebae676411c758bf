"""Says whether drafts are worth it, and what to do. It assumes that the reader has read nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.measure.bench.result import BenchResult, LoadResult
from trtspec.measure.report.drafts import by_category, per_token, whole
from trtspec.measure.report.measured import ReportArm, at_most, of_result
from trtspec.measure.report.numbers import percent

GOOD, POOR = 0.6, 0.5
"""Conditional acceptance of a draft token: the value to aim for, and the value below which drafts may not
pay."""
_ENOUGH = 20
"""With fewer drafts than this, a category is not judged."""
TONES = {"on": "good", "up_to": "mixed", "off": "bad", "undecided": "open", "unmeasured": "open"}


def headline(result: BenchResult) -> str:
    """Returns the answer in a few words."""
    verdict, loads = result.verdict, of_result(result).loads
    if verdict.decision == "up_to" and verdict.switch_off_above is not None:
        return f"Worth it, up to {at_most(loads, verdict.switch_off_above)}"
    if verdict.decision == "undecided" and any(map(_is_sure, result.levels)):
        return "It depends on the load"
    known = sum(level.speedup is not None for level in result.levels)
    if verdict.decision == "on" and known < len(loads):
        return f"Worth it, at {known} of the {len(loads)} loads that were measured"
    if verdict.decision == "unmeasured" and any(level.arms.plain for level in result.levels):
        return "Not known: no speed-up can be stated"
    return {
        "on": "Worth it, at every load that was measured",
        "up_to": "Worth it at low load",
        "off": "Not worth it as it is",
        "undecided": "Not clear yet",
        "unmeasured": "Not known: nothing was measured without drafts",
    }[verdict.decision]


def advice(result: BenchResult) -> tuple[str, ...]:
    """Returns what to do, the most important first."""
    return (*_switch(result), *_drafts(of_result(result).arms[0]))


def _switch(result: BenchResult) -> Iterator[str]:
    verdict, loads = result.verdict, of_result(result).loads
    if verdict.decision == "on":
        known = (level.load for level in result.levels if level.speedup)
        highest = max(known, key=lambda load: load.value, default=loads[-1])
        yield (f"Leave drafts on. The highest measured load is {highest}; measure again if you expect more.")
    elif verdict.decision == "up_to" and verdict.switch_off_above is not None:
        limit = at_most(loads, verdict.switch_off_above)
        yield (
            f"Use drafts up to {limit}, and plain decoding (num_draft_tokens: 0) above"
            + ("; " if verdict.break_even else ", where no difference was found; ")
            + "trtspec's adaptive policy (speculation.policy: adaptive) shortens drafts as load grows."
        )
    elif verdict.decision == "off":
        yield (
            "Serve without drafts (num_draft_tokens: 0), until another draft or another K does better: "
            "trtspec tune searches for one."
        )
    elif verdict.decision == "undecided" and any(map(_is_sure, result.levels)):
        yield (
            "Use drafts at loads whose whole interval is above 1x, and plain decoding (num_draft_tokens: 0) "
            "at loads whose interval is below. Measure for longer (more pairs of blocks) if 1x is within "
            "the interval."
        )
    elif verdict.decision == "undecided":
        yield (
            "Measure for longer (more pairs of blocks), or on an otherwise idle machine: the differences "
            "are within its noise."
        )
    elif verdict.decision == "unmeasured" and any(level.arms.plain for level in result.levels):
        yield "Measure again: the notes say why no load has a speed-up, and how to repair that."
    elif verdict.decision == "unmeasured":
        yield (
            "Measure again with --baseline and the address of the same model without drafts: without it the "
            "gain is unknown."
        )


def _is_sure(level: LoadResult) -> bool:
    """Returns True if a load's whole interval is above or below 1."""
    return level.speedup is not None and (level.speedup.low > 1 or level.speedup.high < 1)


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
