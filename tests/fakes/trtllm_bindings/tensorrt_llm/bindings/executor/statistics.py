"""What an `Executor` says of its iterations (`nanobind/executor/bindings.cpp`); the fields that we read."""

from __future__ import annotations

from dataclasses import field

from tensorrt_llm.bindings.executor.strict import Bound, Size, UInt64


class KvCacheStats(Bound):
    max_num_blocks: Size = field(default=0, init=False)
    free_num_blocks: Size = field(default=0, init=False)
    used_num_blocks: Size = field(default=0, init=False)
    tokens_per_block: Size = field(default=0, init=False)
    reused_blocks: Size = field(default=0, init=False)
    missed_blocks: Size = field(default=0, init=False)


class IterationStats(Bound):
    """`kv_cache_stats` is None for a model without such a cache."""

    iter: UInt64 = field(default=0, init=False)
    kv_cache_stats: KvCacheStats | None = field(default=None, init=False)
