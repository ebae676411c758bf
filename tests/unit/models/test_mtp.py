"""The layers for multi-token prediction, by the names that published checkpoints have."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.fakes.mtp import DEEPSEEK, make_mtp
from trtspec.cli.app import app
from trtspec.models.mtp import mtp_layers
from trtspec.models.source import read_source
from trtspec.pipeline.inspection.folder import inspect

NAMES = {
    "DeepSeek-V3, GLM-4.5": ("model.layers.2.eh_proj.weight", "model.layers.2.enorm.weight"),
    "Qwen3-Next, Qwen3.5, Nemotron-H": ("mtp.layers.0.input_layernorm.weight", "mtp.fc.weight"),
    "MiMo": ("model.mtp_layers.0.input_proj.weight",),
    "ERNIE": ("model.mtp_block.0.input_layernorm.weight", "model.mtp_linear_proj.0.weight"),
    "two": ("model.layers.2.enorm.weight", "model.layers.3.enorm.weight"),
}
COUNTS = {"two": 2}
SAID: dict[str, dict[str, Any]] = {
    "num_nextn_predict_layers": {"num_nextn_predict_layers": 3},
    "mtp_num_hidden_layers": {"mtp_num_hidden_layers": 3},
    "num_mtp_modules": {"num_mtp_modules": 3},
    "mtp_config": {"mtp_config": {"num_nextn_predict_layers": 3}},
}


@pytest.mark.parametrize("family", NAMES)
def test_the_weights_tell_how_many_there_are(llama_folder: Callable[..., Path], family: str) -> None:
    found = mtp_layers(read_source(make_mtp(llama_folder("target"), *NAMES[family])))
    assert found
    assert (found.count, found.is_said) == (COUNTS.get(family, 1), False)
    assert found.size == 4 * 64 * len(NAMES[family])


@pytest.mark.parametrize("keys", SAID.values(), ids=SAID)
def test_the_configuration_counts_before_them(
    llama_folder: Callable[..., Path], keys: dict[str, Any]
) -> None:
    folder = make_mtp(llama_folder("target"), "model.layers.2.enorm.weight", **keys)
    found = mtp_layers(read_source(folder))
    assert found
    assert (found.count, found.is_said, found.size) == (3, True, 256)


def test_a_copy_without_their_weights(llama_folder: Callable[..., Path]) -> None:
    found = mtp_layers(read_source(make_mtp(llama_folder("target"), **DEEPSEEK)))
    assert found
    assert (found.count, found.size) == (1, 0)


@pytest.mark.parametrize("keys", [{}, {"num_nextn_predict_layers": 0}])
def test_a_model_without_any(llama_folder: Callable[..., Path], keys: dict[str, Any]) -> None:
    assert mtp_layers(read_source(make_mtp(llama_folder("target"), **keys))) is None


def test_an_inspection_tells_of_them(llama_folder: Callable[..., Path]) -> None:
    folder = make_mtp(llama_folder("target"), "model.layers.2.enorm.weight", **DEEPSEEK)
    assert inspect(str(folder)).facts["mtp_layers"] == 1
    assert inspect(str(llama_folder("plain"))).facts["mtp_layers"] is None


RECIPE = (
    "name: own\ntarget: {model: ./target}\nspeculation: {method: mtp}\n"
    "engine: {backend: vllm}\nhardware: {gpu: h100}\n"
)


def test_a_check_tells_of_them(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    make_mtp(llama_folder("target"), "model.layers.2.enorm.weight", **DEEPSEEK)
    result = CliRunner().invoke(app, ["check", str(recipe)])
    assert result.exit_code == 0, result.output
    assert "draft: 1 layer of the target for multi-token prediction" in result.stdout


def test_a_check_refuses_a_target_without_any(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(RECIPE)
    llama_folder("target")
    result = CliRunner().invoke(app, ["check", str(recipe)])
    assert result.exit_code == 1
    assert "MTP layers: the target has none" in str(result.exception)
