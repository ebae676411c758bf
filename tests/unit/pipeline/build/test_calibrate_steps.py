"""`trtspec build` of FP8 models: calibrated once, from the recipe's texts or from a file that is ready."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner, Result

from trtspec.base.errors import ModelError
from trtspec.checkpoint.calibration import read_calibration
from trtspec.cli.app import app

FP8 = "{weights: fp8, kv_cache: fp8, calibration: {dataset: texts.jsonl, samples: 4, max_length: 32}}"


@pytest.fixture
def recipe(pair_recipe: Path, llama_folder: Callable[..., Path]) -> Path:
    """The pair in FP8, and texts for it; of the draft the recipe says only the precision."""
    llama_folder("draft", num_hidden_layers=1, initializer_range=0.1)
    lines = (json.dumps({"text": f"{number} green bottles standing on wall {number}"}) for number in range(7))
    (pair_recipe.parent / "texts.jsonl").write_text("\n".join(lines))
    write(pair_recipe, FP8)
    return pair_recipe


def write(recipe: Path, target: str, draft: str = "{weights: fp8}", *further: str) -> None:
    lines = (
        "name: pair",
        f"target: {{model: ./target, quantization: {target}}}",
        f"draft: {{model: ./draft, quantization: {draft}}}",
        "engine: {backend: torch}",
        "hardware: {gpu: none}",
    )
    recipe.write_text("\n".join((*lines, *further)))


def build(recipe: Path, *arguments: str, verb: str = "build") -> Result:
    return CliRunner().invoke(app, [verb, str(recipe), "--output", str(recipe.parent / "build"), *arguments])


def ran(recipe: Path, *arguments: str, verb: str = "build") -> list[str]:
    result = build(recipe, "--json", *arguments, verb=verb)
    assert result.exit_code == 0, result.stderr
    steps: list[str] = json.loads(result.stdout)["ran"]
    return steps


def test_a_build_calibrates_once_and_says_what_it_cost(recipe: Path) -> None:
    result = build(recipe)
    assert result.exit_code == 0, result.stderr
    assert "target: FP8 agrees with the original on " in result.stderr
    assert "draft: FP8 agrees with the original on " in result.stderr
    folder = recipe.parent / "build"
    manifest = json.loads((folder / "manifest.json").read_text())
    for role in ("target", "draft"):
        found = read_calibration(folder / role / "calibration.json")
        assert found.quality
        assert manifest["quality"][role]["kl"] == found.quality.kl
        assert manifest["calibration"][role] == found.provenance
        assert manifest["outputs"][f"{role}/calibration.json"]
        tensors = load_file(folder / role / "checkpoint/rank0.safetensors")
        assert tensors["transformer.layers.0.mlp.fc.weight"].dtype == torch.float8_e4m3fn
    assert str(recipe.parent) not in json.dumps(manifest)
    assert ran(recipe) == []

    write(recipe, FP8, "{weights: fp8}", "speculation: {max_draft_len: 3}")
    assert not [name for name in ran(recipe) if name.startswith(("calibrate", "convert"))]


def test_a_calibration_is_repeated_only_when_its_settings_or_texts_change(recipe: Path) -> None:
    assert ran(recipe, verb="convert") == [
        f"{verb} {role}" for verb in ("calibrate", "convert") for role in ("target", "draft")
    ]
    write(recipe, FP8, "{weights: fp8, kv_cache: fp8}")
    assert ran(recipe, verb="convert") == ["calibrate draft", "convert draft"]
    write(recipe, FP8.replace("samples: 4", "samples: 5"), "{weights: fp8, kv_cache: fp8}")
    assert "calibrate target" in ran(recipe, verb="convert")
    with (recipe.parent / "texts.jsonl").open("a") as stream:
        stream.write('\n{"text": "one more"}')
    assert "calibrate target" in ran(recipe, verb="convert")


def test_a_calibration_that_is_ready(recipe: Path) -> None:
    ran(recipe, verb="convert")
    folder = recipe.parent / "build"
    before = (folder / "target/checkpoint/rank0.safetensors").read_bytes()
    for role in ("target", "draft"):
        (folder / role / "calibration.json").rename(recipe.parent / f"{role}.calibration.json")
    target = "{weights: fp8, kv_cache: fp8, calibration: {dataset: target.calibration.json}}"
    draft = "{weights: fp8, calibration: {dataset: draft.calibration.json}}"
    write(recipe, target, draft)
    ran(recipe, verb="convert")
    assert (folder / "target/checkpoint/rank0.safetensors").read_bytes() == before


def test_layers_in_the_targets_engine_need_no_calibration(recipe: Path) -> None:
    draft = "draft: {model: ./draft, quantization: {weights: fp8}}"
    recipe.write_text(recipe.read_text().replace(draft, "draft: {layers_of_target: [0]}"))
    assert [step for step in ran(recipe) if step.startswith("calibrate")] == ["calibrate target"]
    manifest = json.loads((recipe.parent / "build/manifest.json").read_text())
    assert list(manifest["calibration"]) == ["target"]


def other_weights(folder: Path) -> None:
    tensors = load_file(folder / "target/model.safetensors")
    tensors["model.norm.weight"] += 1
    save_file(tensors, folder / "target/model.safetensors")


def no_cache(folder: Path) -> None:
    content: dict[str, Any] = json.loads((folder / "target.calibration.json").read_text())
    (folder / "target.calibration.json").write_text(json.dumps({**content, "kv": {}}))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (other_weights, "target.calibration.json: was made from ./target, whose weights differ"),
        (no_cache, "target.calibration.json: has no values for the KV cache"),
    ],
)
def test_a_calibration_of_something_else(recipe: Path, change: Callable[[Path], None], said: str) -> None:
    ran(recipe, "--only", "target", verb="convert")
    folder = recipe.parent
    (folder / "build/target/calibration.json").rename(folder / "target.calibration.json")
    write(recipe, FP8.replace("texts.jsonl", "target.calibration.json"))
    change(folder)
    result = build(recipe, "--only", "target", verb="convert")
    assert isinstance(result.exception, ModelError)
    assert said in str(result.exception)
