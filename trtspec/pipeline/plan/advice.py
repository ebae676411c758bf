"""Applies the industry's rules of thumb to a plan; pure."""

from __future__ import annotations

from trtspec.base.roles import Role
from trtspec.checkpoint.convert import checkpoint_size
from trtspec.forecast.outlook import best, break_even
from trtspec.forecast.rules import Expected, MeasuredRun, PairFacts, RuleAdvice, advise
from trtspec.pipeline.plan.embedded import Embedded
from trtspec.pipeline.plan.memory import Budget
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.plan.speed import Speed
from trtspec.recipe import gpus

_USUAL = (0.6, 0.8)
_LONGEST = 32


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
