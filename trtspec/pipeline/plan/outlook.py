"""Collects what to expect of a plan: memory, speed, alternatives, and the verdicts of the rules; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.forecast.rules import MeasuredRun, RuleAdvice
from trtspec.pipeline.plan.advice import advice
from trtspec.pipeline.plan.alternatives import Alternative, alternatives
from trtspec.pipeline.plan.embedded import Embedded, embedded
from trtspec.pipeline.plan.memory import Budget, budget
from trtspec.pipeline.plan.resolved import Resolved
from trtspec.pipeline.plan.speed import Speed, speed, unforeseeable
from trtspec.serving.executors.torch.host import ProcessShare


@dataclass(frozen=True, slots=True)
class PlanOutlook:
    """The memory and speed of a plan's engines."""

    memory: Budget | None
    """None without a GPU, for the `torch` backend, and where the layers of a server's model are not known."""
    on_cpu: Embedded | None
    """None without an engine on the CPU."""
    speed: Speed | None
    """None if it is unknown."""
    no_speed: str | None
    """The reason why the speed is unknown."""
    alternatives: tuple[Alternative, ...]
    """They are searched if the engines do not fit."""
    advice: RuleAdvice


def look_ahead(
    resolved: Resolved,
    host: ProcessShare,
    context: int | None = None,
    measured: MeasuredRun | None = None,
    rollout: str | None = None,
) -> PlanOutlook:
    """Returns the outlook.

    Sequences have `context` tokens on average, `measured` has the results of a run, and `rollout` is the step
    of the build's roll-out.
    """
    memory, on_cpu = budget(resolved), embedded(resolved, host)
    no_speed = unforeseeable(resolved)
    expected = speed(resolved, memory, context) if memory and not no_speed else None
    return PlanOutlook(
        memory,
        on_cpu,
        expected,
        no_speed,
        tuple(alternatives(resolved)) if memory and memory.problem else (),
        advice(resolved, memory, on_cpu, expected, measured, rollout),
    )
