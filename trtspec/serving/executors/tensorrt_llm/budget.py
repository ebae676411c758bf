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
    """The share of the memory that is free after the engine is loaded."""
    max_tokens: int | None = None
    """The largest number of tokens in the cache; None for no limit."""


def tokens_of_each(free: int, fraction: float, engines: Sequence[TrtLlmEngine]) -> int:
    """Returns the number of tokens of each KV cache if all have the same number.

    `free` is in bytes, before any engine is loaded. The caches together take `fraction` of the memory that
    the weights leave. Draft and target cache the same sequences, so a larger cache of one would be useless.

    TensorRT-LLM takes its fraction of the memory that is free at the time. The draft is loaded first, with
    this number as its limit: without one it would take nearly all memory, and the target would not fit. The
    target then takes the same fraction of the rest, so activations and buffers need no estimate here.
    """
    left = free - sum(engine.weight_bytes for engine in engines)
    tokens = int(max(0, left) * fraction) // sum(engine.kv_bytes for engine in engines)
    return min(tokens, _MOST_TOKENS)
