"""Launches of recipes, and the Python of vLLM and SGLang, which judge them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec.build.plan import make_plan
from trtspec.progress import no_progress
from trtspec.servers.launch import Launch

ROOT = Path(__file__).parents[2]
PYTHON = Path(os.environ.get("TRTSPEC_VLLM_PYTHON", ROOT / ".venv-vllm/bin/python"))
"""Set up by `make test-vllm`."""


@pytest.fixture
def launched(tmp_path: Path) -> Callable[..., Launch]:
    """Plans the demo pair for a server; keywords replace sections of the recipe."""

    def plan(backend: str, **sections: str | None) -> Launch:
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
        found = make_plan(recipe, {}, no_progress, to_run=False).resolved.launch
        assert found
        return found

    return plan


def ask(script: str, launches: list[Any]) -> list[dict[str, Any]]:
    """What a script of this folder says of them."""
    result = subprocess.run(
        [PYTHON, Path(__file__).with_name(script)],
        input=json.dumps(launches),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        cwd="/",
    )
    found: list[dict[str, Any]] = json.loads(result.stdout.splitlines()[-1])
    return found
