from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from trtspec.serving.executors.torch.budget import AHEAD, KvNeed, capacity, held, kv_tokens

GIB = 1 << 30
LLAMA_8B, LLAMA_1B = KvNeed(131072, 256, 8192), KvNeed(32768, 256, 8192)


def test_never_more_than_is_asked_for() -> None:
    assert kv_tokens(10**15, "cpu", [KvNeed(100, 32, 1024)]) == 32 * 1024


def test_both_caches_fit_what_is_free() -> None:
    tokens = kv_tokens(48 * GIB, "cuda", [LLAMA_8B, LLAMA_1B])
    bytes_of_both = AHEAD * tokens * (131072 + 32768)
    assert 0.89 * 48 * GIB < bytes_of_both <= 0.9 * 48 * GIB


def test_nothing_is_free() -> None:
    assert kv_tokens(-5, "cpu", [LLAMA_1B]) == 0


@given(st.integers(0, 10**6))
def test_a_slot_never_takes_more_than_it_counts_for(length: int) -> None:
    assert length <= capacity(length) <= AHEAD * held(length)
