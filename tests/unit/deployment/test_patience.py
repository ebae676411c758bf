"""How long a server may take until it is ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.cluster.kubernetes.launches import launch
from trtspec.cluster.kubernetes.recipe_values import STARTUP_S, startup_failures_of_server
from trtspec.deployment.patience import with_build, with_models


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
    patience = with_build(tmp_path)
    assert patience.seconds == seconds
    assert str(patience) == said


def test_a_container_waits_for_models_as_long_as_a_pod() -> None:
    """405B in FP8 from a slow disk takes an hour, wherever its server runs."""
    large = replace(launch("vllm"), weights=405 * 10**9)
    assert with_models(large).seconds == 3825
    assert startup_failures_of_server(large) * STARTUP_S == 3825
