"""What `plan` offers for a pair that does not fit: each must fit when it is asked for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from trtspec.cli.app import app

RECIPE: dict[str, Any] = {
    "name": "x",
    "target": {"model": "Qwen/Qwen2.5-72B-Instruct"},
    "draft": {"model": "Qwen/Qwen2.5-1.5B-Instruct"},
    "hardware": {"gpu": "h100"},
}
CALIBRATION = {"calibration": {"dataset": "abisee/cnn_dailymail/3.0.0/validation-00000-of-00001.parquet"}}


def plan(folder: Path, recipe: dict[str, Any], *more: str) -> Any:
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    result = CliRunner().invoke(app, ["plan", str(folder / "recipe.yaml"), "--json", *more])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def changed(changes: dict[str, Any], of: dict[str, Any] = RECIPE) -> dict[str, Any]:
    recipe: dict[str, Any] = json.loads(json.dumps(of))
    for key, value in changes.items():
        section = recipe
        *names, last = key.split(".")
        for name in names:
            section = section.setdefault(name, {})
        section[last] = value
    if "target.quantization.weights" in changes and "engine" not in of:
        recipe["target"]["quantization"] |= CALIBRATION
    return recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("recipe")


def test_each_fits_as_it_is_said_to(hub_cache: Path, folder: Path) -> None:
    found = plan(folder, RECIPE)
    assert "the engines need 144.2 GiB" in found["memory"]["problem"]
    assert len(found["alternatives"]) > 3
    for one in found["alternatives"]:
        memory = plan(folder, changed(one["changes"]))["memory"]
        assert memory["problem"] is None
        weights = sum(memory[role]["weights"] for role in ("target", "draft"))
        assert weights == one["weights"]
        # A plan of that recipe may choose wider iterations, which may cost a tenth of the KV cache.
        assert 0.89 * one["tokens"] <= memory["tokens"] <= one["tokens"]


@pytest.mark.parametrize(
    "own",
    [
        {"engine": {"backend": "vllm"}, "draft": {"model": "Qwen/Qwen2.5-0.5B-Instruct"}},
        {"engine": {"backend": "tensorrt_llm_pytorch"}, "draft": None, "speculation": {"method": "ngram"}},
    ],
    ids=["a draft whose heads 4 ranks cannot share", "a backend that quantizes nothing"],
)
def test_a_server_takes_what_is_offered(hub_cache: Path, folder: Path, own: dict[str, Any]) -> None:
    recipe = {key: value for key, value in (RECIPE | own).items() if value}
    found = plan(folder, recipe)["alternatives"]
    assert found
    for one in found:
        assert plan(folder, changed(one["changes"], recipe))["memory"]["problem"] is None


def test_the_best_comes_first(hub_cache: Path, folder: Path) -> None:
    found = plan(folder, RECIPE)["alternatives"]
    assert [one["count"] for one in found] == sorted(one["count"] for one in found)
    kinds = {key for one in found for key in one["changes"]}
    assert {"hardware.count", "target.parallel.tensor", "engine.max_seq_len"} <= kinds
    assert {"target.quantization.weights", "target.quantization.kv_cache"} <= kinds


def test_more_gpus_are_not_offered_where_fewer_do(hub_cache: Path, folder: Path) -> None:
    found = plan(folder, {**RECIPE, "hardware": {"gpu": "h200"}})["alternatives"]
    assert [one["count"] for one in found] == [1, 2]
    assert found[0]["changes"] == {
        "target.quantization.weights": "fp8",
        "draft.quantization.weights": "fp8",
    }
    assert found[1]["changes"] == {"hardware.count": 2, "target.parallel.tensor": 2}


def test_a_gpu_without_fp8_is_offered_none(hub_cache: Path, folder: Path) -> None:
    found = plan(folder, {**RECIPE, "hardware": {"gpu": "a100"}})["alternatives"]
    assert found
    assert not [key for one in found for key in one["changes"] if "quantization" in key]


def test_a_pair_that_fits_is_offered_no_alternatives(hub_cache: Path, folder: Path) -> None:
    assert plan(folder, {**RECIPE, "hardware": {"gpu": "b200"}})["alternatives"] == []


def test_nothing_fits(hub_cache: Path, folder: Path) -> None:
    recipe = {
        **RECIPE,
        "target": {"model": "mistralai/Mistral-Large-Instruct-2407"},
        "draft": {"model": "mistralai/Mistral-7B-Instruct-v0.3"},
        "hardware": {"gpu": "a10"},
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    result = CliRunner().invoke(app, ["plan", "-v", str(folder / "recipe.yaml")])
    assert "nothing fits instead: neither FP8 nor shorter sequences, on up to 8 such GPUs" in result.stdout
