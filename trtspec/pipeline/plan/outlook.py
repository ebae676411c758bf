"""Collects what to expect of a plan: memory, speed, the verdicts of the rules, plans that would fit instead.

It is pure but for weights that target and draft share, of which it reads a few kilobytes.

An alternative is the plan with a few keys of its recipe changed, and its memory is computed as the
plan's. What a plan would choose anew for it (the layout, the width of an iteration) stays as it is, so
`trtspec plan` of the changed recipe may find a little more or less room.

On a machine's CPU the torch backend runs all engines of a build, or the draft alone beside a target on a
GPU. The engines compute the same numbers when they are loaded; the free memory may have changed by then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product

from trtspec.backends.table import runner_of
from trtspec.base.roles import Role
from trtspec.checkpoint.convert_options import Mapping as RankMapping
from trtspec.checkpoint.convert_options import misfit
from trtspec.checkpoint.tensors import DTYPES
from trtspec.forecast.outlook import best, break_even
from trtspec.forecast.rules import Expected, MeasuredRun, PairFacts, RuleAdvice, advise
from trtspec.models.layers import num_common
from trtspec.models.source import ITEM_SIZE
from trtspec.pipeline.plan.memory import Budget, budget, budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.pipeline.plan.speed import Speed, speed, unforeseeable
from trtspec.recipe import gpus
from trtspec.recipe.devices import CPU
from trtspec.serving.executors.torch.budget import KvNeed, kv_tokens
from trtspec.serving.executors.torch.host import ProcessShare

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
    gpu = resolved.target.runner.gpu(resolved.loaded.recipe)
    if gpu is None:
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
    if runner_of(recipe).has_engine_draft(recipe):
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
        if after.fp8 and engine.device != CPU:
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
    """Yields the engines as they are, and with a target on all GPUs if it can be split so."""
    yield engines, {}
    target = engines[Role.TARGET]
    mapping = RankMapping(count // target.checkpoint.mapping.pp_size, target.checkpoint.mapping.pp_size)
    is_new = mapping.world_size == count and mapping != target.checkpoint.mapping
    split = {role: engines[role] for role in target.runner.split_alike if role in engines}
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


@dataclass(frozen=True, slots=True)
class Embedded:
    """The free memory of the machine, and the part that the engines of these roles take."""

    roles: tuple[Role, ...]
    free: int
    """In bytes."""
    weights: int
    """In bytes. Weights that two engines have in common count once."""
    shared: int
    """The bytes of weights that two engines have in common, and hold once."""
    kv_per_token: int
    """The bytes of all KV caches for a token."""
    tokens: int
    """The number of tokens that each cache holds, of the `asked`."""
    asked: int
    """The number of tokens that requests can ask for."""
    max_seq_len: int
    threads: int
    """The number of threads that a step runs on."""
    because: str
    """The reason for the number of `threads`."""

    @property
    def requests(self) -> int:
        """The number of requests of full length that each cache holds."""
        return self.tokens // self.max_seq_len

    @property
    def problem(self) -> str | None:
        """The reason why the engines cannot work on this machine; None if they can."""
        if self.tokens < self.max_seq_len:
            return f"the KV cache holds {self.tokens} tokens, less than one sequence of {self.max_seq_len}"
        return None


def embedded(resolved: Resolved, host: ProcessShare) -> Embedded | None:
    """Returns what the engines take of this host; None if it runs none of them.

    If the target is in the same process, one of its threads drives the GPU.
    """
    by_role = {role: need for role, engine in resolved.engines.items() if (need := _need(engine))}
    if not by_role:
        return None
    serving = resolved.coordination
    is_beside_gpu = resolved.release is not None and serving is not None and serving.layout == "in_process"
    host, needs = replace(host, busy=int(is_beside_gpu)), list(by_role.values())
    shared = _shared(resolved) if len(by_role) == len(resolved.engines) else 0
    weights = sum(_weights(resolved.engines[role]) for role in by_role) - shared
    threads, because = host.threads
    return Embedded(
        roles=tuple(by_role),
        free=host.memory,
        weights=weights,
        shared=shared,
        kv_per_token=sum(need.bytes_per_token for need in needs),
        tokens=kv_tokens(host.memory - weights, "cpu", needs),
        asked=max(need.texts * need.max_seq_len for need in needs),
        max_seq_len=max(need.max_seq_len for need in needs),
        threads=threads,
        because=because,
    )


def _need(engine: EnginePlan) -> KvNeed | None:
    method = (engine.head.method if engine.head else "layers") if engine.is_dependent else None
    return engine.runner.host_need(engine.model.source, engine.checkpoint.dtype, engine.options, method)


def _weights(engine: EnginePlan) -> int:
    if engine.layers and engine.is_dependent:
        return 0
    return engine.model.source.parameters * _item(engine)


def _shared(resolved: Resolved) -> int:
    """Returns the bytes of weights that target and draft hold once, in one process and one dtype."""
    serving, draft = resolved.coordination, resolved.engines.get(Role.DRAFT)
    if draft is None or draft.is_dependent or serving is None or serving.layout != "in_process":
        return 0
    options = [engine.checkpoint for engine in resolved.engines.values()]
    is_one_dtype = not any(each.fp8 for each in options) and len({each.dtype for each in options}) == 1
    target = resolved.target.model
    if not is_one_dtype or target.not_read or draft.model.not_read:
        return 0
    return num_common(target.source, draft.model.source) * _item(draft)


def _item(engine: EnginePlan) -> int:
    return ITEM_SIZE[DTYPES[engine.checkpoint.dtype]]


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
        draft_bytes=draft.runner.weight_bytes(draft.model.source, draft.checkpoint) if draft else None,
        length=resolved.num_draft_tokens or target.options.max_draft_len,
        max_batch_size=target.options.max_batch_size,
        requests=min(rooms, default=_made_for(resolved)),
        problem="; ".join(problems) or None,
        expected=_expected(speed) if speed else None,
        rollout=rollout,
        rolls_out=resolved.launch is None,
        inside=target.engine_draft.num_drafted if target.engine_draft else None,
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
