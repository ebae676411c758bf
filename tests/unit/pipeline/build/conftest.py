from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.gpu_machine import H200, GpuMachine


@pytest.fixture
def recipe(h200_recipe: Path) -> Path:
    return h200_recipe


@pytest.fixture
def machine(tmp_path: Path) -> GpuMachine:
    """A server with one H200 and nothing of TensorRT-LLM."""
    machine = GpuMachine(tmp_path / "machine")
    machine.gpus(H200)
    return machine
