"""How long a server may take until it is ready, in a pod as elsewhere; `tests/e2e/test_pod.py` runs one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cluster.kubernetes.launches import launch
from trtspec.cluster.kubernetes.recipe_values import STARTUP_S, startup_failures, startup_failures_of_server
from trtspec.deployment.deployment import limit_for_build, limit_for_engines, limit_for_models
from trtspec.pipeline.store.store import Chunk, Entry, Platform, StoredFile


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
    loading_s = limit_for_engines([size]).seconds
    assert loading_s + 20 < patience < loading_s + 60


@pytest.mark.parametrize(
    ("gigabytes", "seconds", "said"),
    [
        (0, 300, "300 s (300 s, and 0 B at 200 MB/s)"),
        (405, 2325, "2,325 s (300 s, and 405 GB at 200 MB/s)"),
    ],
)
def test_large_engines_get_longer_to_load(tmp_path: Path, gigabytes: int, seconds: int, said: str) -> None:
    for role in ("target", "draft"):
        (tmp_path / role / "engine").mkdir(parents=True)
    with (tmp_path / "target/engine/rank0.engine").open("wb") as stream:
        stream.truncate(gigabytes * 10**9)
    patience = limit_for_build(tmp_path)
    assert patience.seconds == seconds
    assert str(patience) == said


def test_a_container_waits_for_models_as_long_as_a_pod() -> None:
    """405B in FP8 from a slow disk takes an hour, wherever its server runs."""
    large = replace(launch("vllm"), weights=405 * 10**9)
    assert limit_for_models(large).seconds == 3825
    assert startup_failures_of_server(large) * STARTUP_S == 3825
