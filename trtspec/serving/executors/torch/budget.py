"""The budget of the KV caches of an engine or a pair: how many tokens of text they hold. No I/O.

The memory is that of the device, or of the machine as far as the container may use it. On a GPU that others
do not share, nine tenths of what the weights leave is the cache's, as in TensorRT-LLM's `KvCacheConfig`; on a
CPU half of it, since other programs use the memory too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KV_FRACTION = {"cpu": 0.5, "cuda": 0.9}

# Texts for each request of a batch: its own, and one that waits for its next round or whose beginning others
# may share.
TEXTS = 2

# A slot counts as `LEAST` tokens at least, and takes memory for more tokens than it has: see `capacity`.
LEAST = 64
AHEAD = 1.5


@dataclass(frozen=True, slots=True)
class KvNeed:
    """The need of one engine's cache."""

    bytes_per_token: int
    """The number of bytes for a token."""
    texts: int
    """The number of texts."""
    max_seq_len: int
    """The greatest length of a text."""


def dependent_kv_bytes(method: str, hidden_size: int, own_kv_bytes: int, item: int) -> int:
    """Returns what a draft that lives in its target keeps for each token beside the target's keys and values.

    A head keeps a state of the target, `hidden_size` numbers of `item` bytes, and its layers' own keys and
    values, `own_kv_bytes`; layers of the target keep nothing.
    """
    return 0 if method == "layers" else hidden_size * item + own_kv_bytes


def capacity(length: int) -> int:
    """Returns for how many tokens a slot of `length` takes memory: at most `AHEAD` times what it counts."""
    return length + length // 4 + LEAST // 4


def held(length: int) -> int:
    """Returns how many tokens a slot of `length` counts in the budget."""
    return max(length, LEAST)


def kv_tokens(free: int, device: str, needs: Sequence[KvNeed]) -> int:
    """Returns the tokens of each cache, for engines that hold the same texts.

    `free` is in bytes, weights deducted. The result is never more than the engines need; less than a
    `max_seq_len` is too little to run.
    """
    per_token = AHEAD * sum(need.bytes_per_token for need in needs)
    asked = max(need.texts * need.max_seq_len for need in needs)
    return min(int(KV_FRACTION[device] * max(free, 0) / per_token), asked)
