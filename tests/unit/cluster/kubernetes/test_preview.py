"""`trtspec kubernetes deploy --dry-run` and `--helm-values` before anything is built, and without a store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner, Result

from tests.unit.cluster.kubernetes.builds import PUBLISHED, RECIPES, ROOT
from trtspec.base import yaml11
from trtspec.cli.app import app

SCHEMA = json.loads((ROOT / "charts/trtspec/values.schema.json").read_text())


def values(recipe: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["kubernetes", "deploy", str(recipe), "--helm-values", *words])


@pytest.fixture(autouse=True)
def laptop(hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Has neither Helm nor docker."""
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("recipe", PUBLISHED, ids=lambda file: file.stem)
def test_values_of_a_recipe_that_is_not_built_need_no_store_and_name_what_is_left_open(recipe: Path) -> None:
    said = values(recipe)
    assert said.exit_code == 0, said.output
    found = yaml11.load(said.stdout)
    Draft202012Validator(SCHEMA).validate(found)
    assert (found["engines"]["store"], found["digest"]) == ("STORE", "BUILD")
    for open_value in ("left open: STORE", "left open: BUILD"):
        assert open_value in said.stderr


def test_a_store_that_cannot_be_asked_leaves_the_build_open(tmp_path: Path) -> None:
    said = values(RECIPES / "llama-3.1-8b-h100.yaml", "--store", str(tmp_path / "missing"))
    assert said.exit_code == 0, said.output
    assert yaml11.load(said.stdout)["engines"]["store"] == str(tmp_path / "missing")
    assert "left open: BUILD" in said.stderr
    assert "left open: STORE" not in said.stderr


def test_a_server_of_its_own_is_planned(tmp_path: Path) -> None:
    recipe = tmp_path / "served.yaml"
    recipe.write_text(
        "name: pair\ntarget: {model: Qwen/Qwen2.5-32B-Instruct}\ndraft: {model: Qwen/Qwen2.5-0.5B-Instruct}\n"
        "speculation: {num_draft_tokens: 4}\nengine: {backend: vllm}\nhardware: {gpu: h100, count: 1}\n"
    )
    said = values(recipe)
    assert said.exit_code == 0, said.output
    assert yaml11.load(said.stdout)["server"]["command"] == ["vllm", "serve"]
    assert "not built yet: trtspec build" in said.stderr


def test_manifests_without_helm_say_what_needs_none() -> None:
    command = ["kubernetes", "deploy", str(RECIPES / "llama-3.1-8b-h100.yaml"), "--dry-run"]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 1
    assert "--helm-values needs none" in str(said.exception.repair)  # type: ignore[union-attr]
