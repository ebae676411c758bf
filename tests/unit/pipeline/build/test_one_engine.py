"""`trtspec build --only`: what a job of a cluster does of a build."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.gpu_machine import GpuMachine
from tests.support.command_line import trtspec
from trtspec.base.roles import Role
from trtspec.pipeline.build.plan import make_plan
from trtspec.pipeline.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def ran(*words: object) -> list[str]:
    """The steps that a build of one engine has run."""
    done = trtspec("build", *words, "--json")
    assert done.returncode == 0, done.stderr
    names: list[str] = json.loads(done.stdout)["ran"]
    return names


def files(store: Path, role: str) -> dict[str, Any]:
    """The digest of each file of the only entry of this role."""
    (entry,) = (entry for entry in Store(str(store)).entries() if entry.role == role)
    return {name: file.sha256 for name, file in entry.files.items()}


def test_engines_that_were_made_one_by_one_are_those_of_a_whole_build(
    pair_recipe: Path, store: Path, tmp_path: Path
) -> None:
    whole = tmp_path / "whole"
    assert ran(pair_recipe, "--output", tmp_path / "all", "--store", whole)
    for role in Role:
        folder = tmp_path / f"jobs/{role}"
        steps = ran(pair_recipe, "--only", role, "--output", folder, "--store", store)
        made = [f"{step} {role}" for step in ("convert", "verify", "build")]
        assert steps == [*made, "write manifest"]
        assert {path.name for path in folder.iterdir()} == {".trtspec", "manifest.json", role.value}
        assert files(store, role) == files(whole, role)
    assert ran(pair_recipe, "--output", tmp_path / "pair", "--store", store) == [
        *("check pair", "copy tokenizer", "pull target", "pull draft", "write repository", "write manifest")
    ]
    served, once = (
        {name: digest for name, digest in files(each, "pair").items() if name != "manifest.json"}
        for each in (store, whole)
    )
    assert served == once
    keys = {entry.role: entry.key for entry in Store(str(store)).entries()}
    assert keys == {entry.role: entry.key for entry in Store(str(whole)).entries()}


def test_each_stage_goes_on_where_the_one_before_ended(pair_recipe: Path, store: Path) -> None:
    words = (pair_recipe, "--only", "target", "--output", pair_recipe.parent / "out", "--store", store)
    assert ran(*words, "--until", "fetch") == []
    assert ran(*words, "--until", "convert") == ["convert target", "verify target"]
    assert not store.exists()
    assert ran(*words) == ["build target", "write manifest"]
    assert {entry.role for entry in Store(str(store)).entries()} == {"target"}


def test_a_build_of_one_engine_makes_nothing_that_the_store_has(pair_recipe: Path, store: Path) -> None:
    ran(pair_recipe, "--output", pair_recipe.parent / "first", "--store", store)
    other = pair_recipe.parent / "other"
    done = trtspec("build", pair_recipe, "--only", "draft", "--output", other, "--store", store, "--json")
    assert json.loads(done.stdout)["ran"] == []
    assert "the store has the draft: " in done.stderr
    assert not other.exists()


@pytest.mark.parametrize("role", [None, *Role])
def test_only_what_was_asked_for_by_its_key_is_made(
    pair_recipe: Path, store: Path, role: Role | None
) -> None:
    output = pair_recipe.parent / "out"
    made = make_plan(pair_recipe, store=Store(str(store)))
    key, only = made.keys()[role], ("--only", role) if role else ()
    pair_recipe.write_text(pair_recipe.read_text() + "speculation: {max_draft_len: 3}\n")
    words = ("build", pair_recipe, *only, "--output", output, "--store", store, "--key", key)
    refused = trtspec(*words)
    if role is Role.DRAFT:  # which does not depend on how long a draft the target verifies
        assert refused.returncode == 0
        return
    assert refused.returncode == 1
    assert f"would make another {role or 'pair'} than the planned one, {key}"[:55] in refused.stderr
    assert not output.exists()
    pair_recipe.write_text(pair_recipe.read_text().replace("speculation: {max_draft_len: 3}\n", ""))
    assert trtspec(*words).returncode == 0
    assert key in {entry.key for entry in Store(str(store)).entries()}


def test_an_engine_of_tensorrt_llm_without_a_gpu_up_to_its_checkpoint(
    h200_recipe: Path, store: Path, tmp_path: Path
) -> None:
    machine = GpuMachine(tmp_path / "machine")
    words = ("build", h200_recipe, "--only", "target", "--output", tmp_path / "out", "--store", store)
    converted = trtspec(*words, "--until", "convert", environment=machine.environment)
    assert converted.returncode == 0, converted.stderr
    built = trtspec(*words, environment=machine.environment)
    assert built.returncode == 1
    assert "trtllm-build: is not on PATH" in built.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [(("--until", "convert"), "it is for one engine: --only"), (("--only", "draft"), "has no draft")],
)
def test_a_build_of_one_engine_refuses_a_missing_draft_and_a_stage_for_all(
    pair_recipe: Path, words: tuple[str, ...], said: str
) -> None:
    text = pair_recipe.read_text().replace("draft: {model: ./draft, dtype: float32}\n", "")
    pair_recipe.write_text(f"{text}speculation: {{method: ngram}}\n")
    refused = trtspec("build", pair_recipe, *words)
    assert refused.returncode == 2
    assert said in refused.stderr
