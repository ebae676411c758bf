"""The budget of KV cache memory when two engines share a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.serving.executors.tensorrt_llm.engine import TrtLlmEngine

_MOST_TOKENS = 2**31 - 1


@dataclass(frozen=True, slots=True)
class KvBudget:
    """The size of one engine's KV cache, in the terms of `KvCacheConfig`."""

    free_gpu_memory_fraction: float
    """The part of the memory that is free once the engine is loaded."""
    max_tokens: int | None = None
    """The most tokens that the cache holds; None for no such bound."""


def tokens_of_each(free: int, fraction: float, engines: Sequence[TrtLlmEngine]) -> int:
    """Returns how many tokens each KV cache holds when all hold equally many.

    `free` is in bytes, before any engine is loaded; the caches together take `fraction` of what the weights
    leave. Draft and target keep the same sequences, so a larger cache of one of them would be of no use.

    TensorRT-LLM takes its fraction of what is free at the time. The draft is loaded first, with this number
    as its limit: without one it would take nearly all memory, and the target would not fit. The target then
    takes the same fraction of what is left, so that activations and buffers need not be estimated here.
    """
    left = free - sum(engine.weight_bytes for engine in engines)
    tokens = int(max(0, left) * fraction) // sum(engine.kv_bytes for engine in engines)
    return min(tokens, _MOST_TOKENS)
