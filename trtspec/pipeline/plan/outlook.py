"""Collects what to expect of a plan: memory, speed, alternatives, and the verdicts of the rules; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.base.roles import Role
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.forecast.outlook import best, break_even
from trtspec.forecast.rules import Expected, MeasuredRun, PairFacts, RuleAdvice, advise
from trtspec.pipeline.plan.alternatives import Alternative, alternatives
from trtspec.pipeline.plan.embedded import Embedded, embedded
from trtspec.pipeline.plan.memory import Budget, budget
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.plan.speed import Speed, speed, unforeseeable
from trtspec.recipe import gpus
from trtspec.serving.executors.torch.host import ProcessShare

_USUAL = (0.6, 0.8)
_LONGEST = 32


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


def advice(
    resolved: Resolved,
    budget: Budget | None,
    on_cpu: Embedded | None,
    speed: Speed | None,
    measured: MeasuredRun | None,
    rollout: str | None,
) -> RuleAdvice:
    """Returns the rules and the checklist with their verdicts.

    Every other argument is None if the plan lacks it: `measured` without a measurement, and `rollout` before
    one was started.
    """
    target, draft = resolved.target, resolved.engines.get(Role.DRAFT)
    memories = [memory for memory in (budget, on_cpu) if memory]
    # If the recipe sets no length, another engine's server has the model's own: few requests reach it.
    is_asked = resolved.launch is None or resolved.loaded.recipe.written("engine.max_seq_len") is not None
    rooms = [memory.requests for memory in memories if is_asked]
    problems = [memory.problem for memory in memories if memory.problem]
    facts = PairFacts(
        target_parameters=target.model.source.active_parameters,
        draft_parameters=draft.model.source.active_parameters if draft else None,
        draft_bytes=_bytes(draft) if draft else None,
        length=resolved.num_draft_tokens or target.options.max_draft_len,
        max_batch_size=target.options.max_batch_size,
        requests=min(rooms, default=_made_for(resolved)),
        problem="; ".join(problems) or None,
        expected=_expected(speed) if speed else None,
        rollout=rollout,
        rolls_out=resolved.launch is None,
        inside=target.inside.draft.num_drafted if target.inside else None,
    )
    return advise(facts, measured)


def _made_for(resolved: Resolved) -> int | None:
    """Returns how many requests a server's KV caches are made for; only a server on a CPU gets that
    number."""
    on_cpu = resolved.loaded.recipe.hardware.gpu == gpus.NONE
    return resolved.target.options.max_batch_size if on_cpu else None


def _expected(speed: Speed) -> Expected:
    """Returns the expected speed of one stream, with the best draft length."""
    alone, first = speed.at(1), speed.rows[0]
    least, most = (best(speed.pair, alone, acceptance, _LONGEST).length for acceptance in _USUAL)
    return Expected(
        first.draft_cost,
        (least, most),
        break_even(speed.pair, alone),
        first.tokens_per_second,
        first.plain.bottleneck,
    )


def _bytes(engine: EnginePlan) -> int:
    """Returns the bytes of the weights: of a checkpoint, or as another server loads them."""
    source = engine.model.source
    if engine.runner.builds_engines:
        return checkpoint_size(source, engine.checkpoint, engine.draft_inside)
    return source.size
