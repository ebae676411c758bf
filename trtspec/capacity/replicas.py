"""Makes the replicas of a plan, with drafts and without. Their times come from the plan's forecast or a
measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtspec.base.roles import Role
from trtspec.capacity.tempo import Replica, Tempo
from trtspec.checkpoint.convert import rank_sizes
from trtspec.pipeline.plan.memory import budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.recipe import gpus


@dataclass(frozen=True, slots=True)
class EngineBytes:
    """Bytes of the engines: of all, and of those on the fullest GPU."""

    whole: int
    fullest: int


def replica(resolved: Resolved, tempo: Tempo, *, has_drafts: bool) -> Replica:
    """Returns a server of a plan; one without drafts can use the draft's memory and GPUs."""
    engines, options = _engines(resolved, has_drafts), resolved.target.options
    placed = resolved.placement
    used = {*placed.target, *(placed.draft if has_drafts else ())}
    return Replica(
        tempo,
        places=min(engine.options.max_batch_size for engine in engines.values()),
        kv_tokens=_kv_tokens(resolved, engines),
        longest_draft=options.max_draft_len if has_drafts else 0,
        most_rows=options.max_num_tokens,
        gpus=1 if resolved.loaded.recipe.hardware.gpu == gpus.NONE else len(used),
    )


def weight(resolved: Resolved, *, has_drafts: bool) -> EngineBytes:
    """Returns the bytes of the engines, which are nearly those of their checkpoints."""
    sizes: dict[int, int] = {}
    for role, engine in _engines(resolved, has_drafts).items():
        ranks = rank_sizes(engine.model.source, engine.checkpoint, engine.draft_inside)
        places: Sequence[int] = resolved.placement.of(role) or range(len(ranks))
        for place, size in zip(places, ranks, strict=False):
            sizes[place] = sizes.get(place, 0) + size
    return EngineBytes(sum(sizes.values()), max(sizes.values()))


def _engines(resolved: Resolved, has_drafts: bool) -> dict[Role, EnginePlan]:
    if has_drafts:
        return dict(resolved.engines)
    target = resolved.target
    return {Role.TARGET: replace(target, options=replace(target.options, max_draft_len=0))}


def _kv_tokens(resolved: Resolved, engines: dict[Role, EnginePlan]) -> int | None:
    """Returns the tokens that the KV caches hold; None for a replica on a CPU, which has no plan of
    memory."""
    hardware = resolved.loaded.recipe.hardware
    gpu = gpus.GPUS.get(hardware.gpu)
    if resolved.target.runner.is_embedded or gpu is None:
        return None
    return budget_of(gpu, engines, hardware.count).tokens
