"""A build for TensorRT-LLM, with a stand-in for `trtllm-build` on PATH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

TRTSPEC = Path(sys.executable).with_name("trtspec")
FAKE = Path(__file__).parents[2] / "fakes/trtllm_build.py"


@pytest.fixture
def recipe(pair_recipe: Path) -> Path:
    text = pair_recipe.read_text()
    for old, new in (
        ("backend: torch", "release: 1.2.1"),
        ("gpu: none", "gpu: h200"),
        ("float32", "float16"),
    ):
        text = text.replace(old, new)
    pair_recipe.write_text(text)
    return pair_recipe


@pytest.fixture
def on_path(tmp_path: Path) -> dict[str, str]:
    """An environment in which `trtllm-build` is found."""
    command = tmp_path / "bin/trtllm-build"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} {FAKE} "$@"\n')
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{command.parent}:/usr/bin:/bin"}


def build(recipe: Path, environment: dict[str, str], *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(TRTSPEC), "build", recipe.name, "--output", "out", *more]
    return subprocess.run(
        command, cwd=recipe.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_both_engines_are_built_by_the_command_that_the_plan_shows(
    recipe: Path, on_path: dict[str, str]
) -> None:
    result = build(recipe, on_path)
    assert result.returncode == 0, result.stderr
    out = recipe.parent / "out"
    configs = {
        role: json.loads((out / role / "engine/config.json").read_text()) for role in ("target", "draft")
    }
    assert configs["target"]["build_config"]["speculative_decoding_mode"] == 2
    assert configs["draft"]["build_config"]["speculative_decoding_mode"] == 1
    assert "tensorrt_llm" in (out / "model_repository/speculative_llm/config.pbtxt").read_text()
    assert (out / ".trtspec/logs/model.cache").exists()
    manifest = json.loads((out / "manifest.json").read_text())
    command = manifest["commands"]["build target"]
    assert command[:5] == [
        "trtllm-build",
        "--checkpoint_dir",
        "target/checkpoint",
        "--output_dir",
        "target/engine",
    ]
    assert str(recipe.parent) not in (out / "manifest.json").read_text()
    assert "nothing to do" in build(recipe, on_path).stderr


def test_an_engine_that_comes_out_different_is_in_a_new_manifest(
    recipe: Path, on_path: dict[str, str]
) -> None:
    build(recipe, on_path)
    engine = recipe.parent / "out/draft/engine/rank0.engine"
    engine.unlink()
    result = build(recipe, on_path, "--json")
    assert json.loads(result.stdout)["ran"] == ["build draft", "write manifest"]
    manifest = json.loads((recipe.parent / "out/manifest.json").read_text())
    digest = subprocess.check_output(["sha256sum", engine], text=True).split()[0]
    assert manifest["outputs"]["draft/engine/rank0.engine"] == digest


def test_without_trtllm_build_nothing_is_converted_and_the_image_is_named(recipe: Path) -> None:
    result = build(recipe, {**os.environ, "PATH": "/usr/bin:/bin"})
    assert result.returncode == 1
    assert "error: trtllm-build: is not on PATH" in result.stderr
    assert "nvcr.io/nvidia/tritonserver:26.0" in result.stderr
    assert "--backend torch" in result.stderr
    assert not (recipe.parent / "out/target").exists()


def test_a_build_that_breaks_off_names_its_log(recipe: Path, on_path: dict[str, str]) -> None:
    recipe.write_text(
        recipe.read_text().replace("model: ./target", "model: ./target, build: {log_level: error}")
    )
    result = build(recipe, on_path)
    assert result.returncode == 1
    assert "error: trtllm-build: failed with status 2" in result.stderr
    assert "unrecognized arguments: --log_level error" in result.stderr
    assert "out/.trtspec/logs/build-target.log" in result.stderr
    assert not (recipe.parent / "out/target/engine").exists()


def test_an_engine_that_would_not_load_is_refused(recipe: Path, on_path: dict[str, str]) -> None:
    result = build(recipe, {**on_path, "FAKE_WITHOUT_PAGED": "1"})
    assert result.returncode == 1
    assert "built without use_paged_context_fmha" in result.stderr
    assert not (recipe.parent / "out/target/engine").exists()
