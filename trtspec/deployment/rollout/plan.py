"""Plans a roll-out: its steps, the requests and bounds of each, and what to settle before; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtspec.deployment.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS, bounds_of
from trtspec.deployment.rollout.steps import STEPS
from trtspec.forecast.rules import Judgement, RuleAdvice
from trtspec.serving.rollout.state import RolloutState


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """One step of a roll-out."""

    step: str
    """The name of the step."""
    drafts: str
    """The share of requests that has drafts, in words."""
    requests: int
    """About so many requests are needed for a verdict."""
    bounds: dict[str, str]
    """The bounds that stop the roll-out, by name."""


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """A roll-out before it begins."""

    stages: tuple[RolloutStage, ...]
    """The stages in their order."""
    against: tuple[Judgement, ...]
    """The rules that the pair breaks, the worst first."""
    unmeasured: tuple[Judgement, ...]
    """The rules that nobody has measured yet."""
    words: str
    """The sum of the advice in a sentence."""


def make(advice: RuleAdvice) -> RolloutPlan:
    """Returns the plan for a pair with these results of the rules and the checklist."""
    judged = (*advice.rules, *advice.checklist)
    return RolloutPlan(
        tuple(_stage(step.name, step.state) for step in STEPS[1:]),
        tuple(each for each in judged if each.verdict == "no"),
        tuple(each for each in judged if each.verdict == "unmeasured" and "rollout" not in each.rule),
        advice.words,
    )


def _stage(name: str, state: RolloutState) -> RolloutStage:
    drafts = f"{state.share:.0%}" + (", scored" if state.mode == "shadow" else "")
    # Each of the two arms needs this many requests, and the one with drafts more.
    smaller = min(state.share, 1 - state.share) or 1.0
    needed = max(LEAST_REQUESTS / smaller, FEWEST_WITHOUT_ERRORS / state.share)
    return RolloutStage(name, drafts, math.ceil(needed), bounds_of(state))
