"""Computes the memory and threads of engines of the torch backend on a machine's CPU; pure.

That is all engines of a build, or the draft alone beside a target on a GPU.

The engines compute the same numbers when they are loaded; the free memory may have changed by then.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from trtspec.base.roles import Role
from trtspec.checkpoint.cast import DTYPES
from trtspec.models.source import ITEM_SIZE
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.serving.executors.torch.budget import TEXTS, KvNeed, dependent_kv_bytes, kv_tokens
from trtspec.serving.executors.torch.host import ProcessShare


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
    by_role = {role: engine for role, engine in resolved.engines.items() if engine.runner.is_embedded}
    if not by_role:
        return None
    serving = resolved.coordination
    is_beside_gpu = resolved.release is not None and serving is not None and serving.layout == "in_process"
    host, engines = replace(host, busy=int(is_beside_gpu)), by_role.values()
    needs, shared = [_need(engine) for engine in engines], _shared(resolved)
    weights = sum(_weights(engine) for engine in engines) - shared
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


def _need(engine: EnginePlan) -> KvNeed:
    """Returns the need of the whole model, since its ranks run on one device.

    The torch backend keeps a float8 cache in the model's dtype.
    """
    source, options, head = engine.model.source, engine.options, engine.head
    size = source.num_hidden_layers * 2 * source.num_key_value_heads * source.head_size * _item(engine)
    if engine.is_dependent:
        method = head.method if head else "layers"
        size = dependent_kv_bytes(method, source.hidden_size, size, _item(engine))
    return KvNeed(size, TEXTS * options.max_batch_size, options.max_seq_len)


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
    is_here = all(engine.runner.is_embedded for engine in resolved.engines.values())
    return draft.model.num_common * _item(draft) if is_here and is_one_dtype else 0


def _item(engine: EnginePlan) -> int:
    return ITEM_SIZE[DTYPES[engine.checkpoint.dtype]]
