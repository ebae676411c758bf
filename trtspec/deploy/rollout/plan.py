"""The plan of a roll-out: its steps, what each waits for and must keep, what to settle before; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtspec.deploy.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS, bounds_of
from trtspec.deploy.rollout.steps import STEPS
from trtspec.forecast.rules import Judgement, RuleAdvice
from trtspec.serving.rollout.state import RolloutState


@dataclass(frozen=True, slots=True)
class RolloutStage:
    """One step: who has drafts, about how many requests it takes, and the bounds that stop it, by name."""

    step: str
    drafts: str
    requests: int
    bounds: dict[str, str]


@dataclass(frozen=True, slots=True)
class RolloutPlan:
    """The stages in their order, and what is against the roll-out or not known yet, the worst first."""

    stages: tuple[RolloutStage, ...]
    against: tuple[Judgement, ...]
    unmeasured: tuple[Judgement, ...]
    words: str


def make(advice: RuleAdvice) -> RolloutPlan:
    """Returns the plan for a pair of which the rules and the checklist say this."""
    judged = (*advice.rules, *advice.checklist)
    return RolloutPlan(
        tuple(_stage(step.name, step.state) for step in STEPS[1:]),
        tuple(each for each in judged if each.verdict == "no"),
        tuple(each for each in judged if each.verdict == "unmeasured" and "rollout" not in each.rule),
        advice.words,
    )


def _stage(name: str, state: RolloutState) -> RolloutStage:
    drafts = f"{state.share:.0%}" + (", scored" if state.mode == "shadow" else "")
    # Each of the two arms must have had so many, and the one with drafts more.
    smaller = min(state.share, 1 - state.share) or 1.0
    needed = max(LEAST_REQUESTS / smaller, FEWEST_WITHOUT_ERRORS / state.share)
    return RolloutStage(name, drafts, math.ceil(needed), bounds_of(state))
