"""Finds plans that would fit instead of one that does not; pure.

Each alternative is the plan with a few keys of its recipe changed, and its memory is computed as the plan's.
What a plan would choose anew for it (the layout, the width of an iteration) stays as it is, so `trtspec plan`
of the changed recipe may find a little more or less room.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from trtspec.base.roles import Role
from trtspec.checkpoint.mapping import Mapping as RankMapping
from trtspec.checkpoint.mapping import misfit
from trtspec.pipeline.plan.memory import Budget, budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.recipe import gpus

COUNTS = (2, 4, 8)
LEAST_TOKENS = 1024
"""A shorter sequence is no alternative."""

_ROUND = 32  # tokens of a block of the KV cache
_PRECISIONS = ((), ("weights",), ("weights", "kv_cache"))
_SPREAD = ("hardware.count", "target.parallel.tensor")

Engines = Mapping[Role, EnginePlan]
Values = dict[str, str | int]


@dataclass(frozen=True, slots=True)
class Alternative:
    """A plan that fits."""

    changes: Values
    """The new values, by the keys of the recipe that are to be changed."""
    count: int
    """The number of GPUs."""
    budget: Budget

    @property
    def has_room(self) -> bool:
        """True if the KV caches hold the largest number of requests at full length."""
        return self.budget.requests >= self.budget.max_batch_size


def alternatives(resolved: Resolved) -> list[Alternative]:
    """Returns what fits, best first.

    Fewer GPUs come first, then plans with room for the whole batch, then fewer changes, then more requests.
    It leaves out a plan if another one needs only a part of its changes or fewer GPUs, unless only the first
    has room for the batch.
    """
    gpu = gpus.GPUS.get(resolved.loaded.recipe.hardware.gpu)
    if resolved.target.runner.is_embedded or gpu is None:
        return []
    found = sorted(_fitting(resolved, gpu), key=_rank)
    return [one for one in found if not any(_is_spared(one, other) for other in found)]


def _rank(one: Alternative) -> tuple[int, bool, int, int]:
    return one.count, not one.has_room, len(one.changes), -one.budget.requests


def _is_spared(one: Alternative, other: Alternative) -> bool:
    if other.has_room < one.has_room:
        return False
    elsewhere = {key: value for key, value in one.changes.items() if key not in _SPREAD}
    theirs = {key: value for key, value in other.changes.items() if key not in _SPREAD}
    fewer_gpus = other.count < one.count and theirs.items() <= elsewhere.items()
    return fewer_gpus or other.changes.items() < one.changes.items()


def _fitting(resolved: Resolved, gpu: gpus.GpuProduct) -> Iterator[Alternative]:
    recipe = resolved.loaded.recipe
    here, lacking = recipe.hardware.count, set[str]()
    if recipe.drafts_inside:
        lacking.update(recipe.speculation.method.lacking_inside)
    for count, parts in product((here, *(more for more in COUNTS if more > here)), _PRECISIONS):
        moved: Values = {"hardware.count": count} if count != here else {}
        for spread, ranks in _spread(resolved.engines, count):
            quantized = _quantized(spread, gpu, parts)
            if quantized is None or quantized[1].keys() & lacking or (moved and not ranks):
                continue
            engines, precision = quantized
            for shortened, length in _shorter(engines, gpu, count):
                changes, budget = moved | ranks | precision | length, budget_of(gpu, shortened, count)
                if changes and budget.problem is None:
                    yield Alternative(changes, count, budget)


def _quantized(
    engines: Engines, gpu: gpus.GpuProduct, parts: tuple[str, ...]
) -> tuple[Engines, Values] | None:
    """Returns the engines with these parts in FP8; None if that is impossible, or changes nothing."""
    changed, keys = dict(engines), Values()
    for role, engine in engines.items():
        before, mapping = engine.checkpoint, engine.checkpoint.mapping
        after = replace(
            before,
            fp8=before.fp8 or "weights" in parts,
            fp8_kv_cache=before.fp8_kv_cache or "kv_cache" in parts,
        )
        if after.fp8 and not engine.runner.is_embedded:
            can_be = gpu.fp8 and (before.fp8 or engine.runner.quantizes)
            if not can_be or misfit(engine.model.source, mapping, fp8=True):
                return None
            changed[role] = replace(engine, checkpoint=after)
            for part, was, now in (
                ("weights", before.fp8, after.fp8),
                ("kv_cache", before.fp8_kv_cache, after.fp8_kv_cache),
            ):
                if now and not was:
                    keys[f"{role}.quantization.{part}"] = "fp8"
    return (changed, keys) if bool(keys) == bool(parts) else None


def _spread(engines: Engines, count: int) -> Iterator[tuple[Engines, Values]]:
    """Yields the engines as they are, and with a target on all GPUs if it can be split so.

    Another engine's server splits the draft as it splits the target.
    """
    yield engines, {}
    target = engines[Role.TARGET]
    mapping = RankMapping(count // target.checkpoint.mapping.pp_size, target.checkpoint.mapping.pp_size)
    is_new = mapping.world_size == count and mapping != target.checkpoint.mapping
    split = {Role.TARGET: target} if target.runner.builds_engines else engines
    divides = all(engine.model.source.num_attention_heads % mapping.tp_size == 0 for engine in split.values())
    if is_new and divides and not misfit(target.model.source, mapping, fp8=target.checkpoint.fp8):
        spread = {role: _on_ranks(engine, mapping.tp_size) for role, engine in split.items()}
        yield {**engines, **spread}, {"target.parallel.tensor": mapping.tp_size}


def _on_ranks(engine: EnginePlan, tensor: int) -> EnginePlan:
    before = engine.checkpoint
    return replace(engine, checkpoint=replace(before, mapping=replace(before.mapping, tp_size=tensor)))


def _shorter(engines: Engines, gpu: gpus.GpuProduct, count: int) -> Iterator[tuple[Engines, Values]]:
    """Yields the engines as they are, and with the longest sequence that fits: one of it, or the whole
    batch."""
    yield engines, {}
    options = engines[Role.TARGET].options
    tokens = budget_of(gpu, engines, count).tokens
    for requests in sorted({1, options.max_batch_size}):
        length = (tokens // requests - options.max_draft_len) // _ROUND * _ROUND
        if LEAST_TOKENS <= length < options.max_seq_len:
            cut = {
                role: replace(engine, options=replace(engine.options, max_seq_len=length))
                for role, engine in engines.items()
            }
            yield cut, {"engine.max_seq_len": length}
