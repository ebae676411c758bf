"""What a pod runs, as far as numbers must fit; `tests/e2e/test_py` runs it."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.cluster.kubernetes.recipe_values import STARTUP_S, startup_failures
from trtspec.deployment.patience import with_engines
from trtspec.pipeline.store.entry import Chunk, Entry, Platform, StoredFile


def entry(size: int) -> Entry:
    """A build with engines of so many bytes, and a tokenizer that is none."""
    half = StoredFile("a" * 64, (Chunk("b" * 64, size // 2),))
    files: dict[str, Any] = {
        "target/engine/rank0.engine": half,
        "draft/engine/rank0.engine": half,
        "tokenizer/tokenizer.json": StoredFile("c" * 64, (Chunk("d" * 64, 10**12),)),
    }
    platform = Platform("tensorrt_llm", 90, "10.14.1.48", "1.2.1")
    return Entry("pair", "llama", platform, "1" * 64, "2026-01-01T00:00:00+00:00", files, (), {})


@pytest.mark.parametrize("size", [0, 16 * 10**9, 810 * 10**9])
def test_the_server_gives_up_and_says_why_before_it_is_killed(size: int) -> None:
    patience = STARTUP_S * startup_failures(entry(size))
    loading_s = with_engines([size]).seconds
    assert loading_s + 20 < patience < loading_s + 60
