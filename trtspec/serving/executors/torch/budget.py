"""The budget of the KV caches of an engine or a pair: the number of tokens that they hold. No I/O.

The memory is that of the GPU, or the machine's memory that the container may use. On a GPU the cache takes
nine tenths of what the weights leave, as in TensorRT-LLM's `KvCacheConfig`. On a CPU it takes half, since
other programs use the memory too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

KV_FRACTION = {"cpu": 0.5, "cuda": 0.9}

# The sequences for each request of a batch: its own, and one that waits for its next round or has a prefix to
# share.
TEXTS = 2

# A slot counts as at least `LEAST` tokens, and allocates memory for up to `AHEAD` times as many (`capacity`).
LEAST = 64
AHEAD = 1.5


@dataclass(frozen=True, slots=True)
class KvNeed:
    """The need of one engine's cache."""

    bytes_per_token: int
    """The number of bytes for a token."""
    texts: int
    """The number of sequences."""
    max_seq_len: int
    """The largest length of a sequence."""


def dependent_kv_bytes(method: str, hidden_size: int, own_kv_bytes: int, item: int) -> int:
    """Returns the bytes that a draft inside its target needs for each token beside the target's own.

    A head stores a state of the target, `hidden_size` numbers of `item` bytes, and its layers' own keys and
    values, `own_kv_bytes`. Layers of the target store nothing.
    """
    return 0 if method == "layers" else hidden_size * item + own_kv_bytes


def capacity(length: int) -> int:
    """Returns the tokens that a slot of `length` allocates memory for: at most `AHEAD * held(length)`."""
    return length + length // 4 + LEAST // 4


def held(length: int) -> int:
    """Returns the tokens that a slot of `length` counts in the budget."""
    return max(length, LEAST)


def kv_tokens(free: int, device: str, needs: Sequence[KvNeed]) -> int:
    """Returns the tokens of each cache, for engines that cache the same sequences.

    `free` is in bytes, without the weights. The result is never more than the engines need. With less than
    `max_seq_len` they cannot run.
    """
    per_token = AHEAD * sum(need.bytes_per_token for need in needs)
    asked = max(need.texts * need.max_seq_len for need in needs)
    return min(int(KV_FRACTION[device] * max(free, 0) / per_token), asked)
