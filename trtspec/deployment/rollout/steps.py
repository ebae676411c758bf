"""The steps of a roll-out, from no drafts to drafts for all, with the requests and bounds of each; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trtspec.deployment.rollout.bounds import FEWEST_WITHOUT_ERRORS, LEAST_REQUESTS, bounds_of
from trtspec.forecast.rules import Judgement, RuleAdvice
from trtspec.serving.rollout.state import RolloutState


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A step of a roll-out, with its name for people."""

    name: str
    state: RolloutState


STEPS = (
    RolloutStep("off", RolloutState("speculate", 0.0)),
    # Half of the requests, so that the other half shows what drafts cost the plain requests.
    RolloutStep("shadow", RolloutState("shadow", 0.5)),
    RolloutStep("5 %", RolloutState("speculate", 0.05)),
    RolloutStep("25 %", RolloutState("speculate", 0.25)),
    RolloutStep("50 %", RolloutState("speculate", 0.5)),
    RolloutStep("all", RolloutState("speculate", 1.0)),
)
OFF, ALL = STEPS[0], STEPS[-1]


def name_of(state: RolloutState) -> str:
    """Returns the name of a state, which need not be one of the steps: a recipe may have any share."""
    known = {step.state: step.name for step in STEPS}
    kind = "shadow " if state.mode == "shadow" else ""
    return known.get(state) or f"{kind}{state.share * 100:.4g} %"


def after(state: RolloutState) -> RolloutStep | None:
    """Returns the next step; None behind the last."""
    return next((step for step in STEPS if _height(step.state) > _height(state)), None)


def before(state: RolloutState) -> RolloutStep | None:
    """Returns the step before; None before the first."""
    return next((step for step in reversed(STEPS) if _height(step.state) < _height(state)), None)


def _height(state: RolloutState) -> tuple[int, float]:
    """Orders states: off, shadow of any share, then by the share that has drafts."""
    if not state.share:
        return 0, 0.0
    return (1, 0.0) if state.mode == "shadow" else (2, state.share)


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


def plan_of(advice: RuleAdvice) -> RolloutPlan:
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
