"""Launches of recipes, and vLLM deployed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.servers.judges import ROOT
from tests.servers.serving import Deployer, deploying
from trtspec.backends.launch import ServerLaunch
from trtspec.pipeline.build.plan import make_plan


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., ServerLaunch]:
    """Plans the demo pair for a server; keywords replace sections of the recipe."""

    def plan(backend: str, **sections: str | None) -> ServerLaunch:
        values: dict[str, str | None] = {
            "name": "tiny",
            "target": f"{{model: {ROOT}/recipes/tiny/target}}",
            "draft": f"{{model: {ROOT}/recipes/tiny/draft}}",
            "engine": f"{{backend: {backend}, max_seq_len: 1024}}",
            "hardware": "{gpu: none}" if backend == "vllm" else "{gpu: h100}",
            **sections,
        }
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text("".join(f"{key}: {value}\n" for key, value in values.items() if value))
        found = make_plan(recipe).resolved.launch
        assert found
        return found

    return plan


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployer]:
    """Builds a recipe and deploys it with these options; what it is ended with is a test's."""
    with deploying(tmp_path_factory.mktemp("deployed")) as deploy:
        yield deploy
