"""How many tokens of text the KV caches of an engine, or of a pair, may hold. Pure.

The memory is that of the device, or of the machine as far as the container may use it. On a GPU that others
do not share, nine tenths of what the weights leave is the cache's, as in TensorRT-LLM's `KvCacheConfig`; on a
CPU half of it, since the memory is everybody's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KV_FRACTION = {"cpu": 0.5, "cuda": 0.9}

# A slot counts as so many tokens at least, and takes memory for more than it has: see `capacity`.
LEAST = 64
AHEAD = 1.5


@dataclass(frozen=True, slots=True)
class KvNeed:
    """What one engine's cache takes: bytes for a token, and the most and longest texts it is asked for."""

    bytes_per_token: int
    texts: int
    max_seq_len: int


def capacity(length: int) -> int:
    """How many tokens a slot takes memory for to hold `length`: at most `AHEAD` times what it counts."""
    return length + length // 4 + LEAST // 4


def held(length: int) -> int:
    """What a slot of `length` tokens counts."""
    return max(length, LEAST)


def kv_tokens(free: int, device: str, needs: Sequence[KvNeed]) -> int:
    """The tokens of each cache, for engines that hold the same texts; `free` is in bytes, weights deducted.

    Never more than is asked for; fewer than `max_seq_len` is too few to run.
    """
    per_token = AHEAD * sum(need.bytes_per_token for need in needs)
    asked = max(need.texts * need.max_seq_len for need in needs)
    return min(int(KV_FRACTION[device] * max(free, 0) / per_token), asked)
