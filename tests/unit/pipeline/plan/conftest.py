"""Plans of a pair that another engine's server serves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.plan.resolved import Resolved

Planned = Callable[..., Resolved]


@pytest.fixture
def planned(llama_folder: Callable[..., Path], tmp_path: Path) -> Planned:
    """Plans a recipe for vLLM on one H100; keywords replace its sections."""

    def plan(
        *, flag: str | None = None, change: Callable[[], object] | None = None, **sections: str
    ) -> Resolved:
        llama_folder("target", hidden_size=64, max_position_embeddings=16384)
        llama_folder("draft", num_hidden_layers=1, max_position_embeddings=16384)
        lines = {
            "name": "pair",
            "target": "{model: ./target}",
            "draft": "{model: ./draft}",
            "engine": "{backend: vllm}",
            "hardware": "{gpu: h100}",
            **sections,
        }
        if change:
            change()
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text("".join(f"{key}: {value}\n" for key, value in lines.items()))
        return make_plan(recipe, backend=flag).resolved

    return plan
