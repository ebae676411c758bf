"""The steps of a roll-out, from no drafts to drafts for all; pure."""

from __future__ import annotations

from dataclasses import dataclass

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
