"""`trtspec build --store`: what one machine built, another one pulls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner, Result

from trtspec.base.errors import StoreError, UnavailableError
from trtspec.cli.app import app
from trtspec.pipeline.build.build import BuildResult, run_steps
from trtspec.pipeline.run.runner import only_build
from trtspec.pipeline.store import transfer

PUSHED = {"target", "draft", "pair"}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


def run(*args: object) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def build(recipe: Path, name: str, store: Path) -> dict[str, Any]:
    """What a build of an empty folder says of itself."""
    result = run("build", recipe, "--output", recipe.parent / name, "--store", store, "--json")
    assert result.exit_code == 0, result.exception
    content: dict[str, Any] = json.loads(result.stdout)
    return content


def entries(store: Path) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = json.loads(run("store", "list", store, "--json").stdout)
    return content


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_a_second_build_pulls_the_engines_that_the_first_one_stored(pair_recipe: Path, store: Path) -> None:
    assert "build target" in build(pair_recipe, "first", store)["ran"]
    assert {entry["role"] for entry in entries(store)} == PUSHED

    second = build(pair_recipe, "second", store)["ran"]
    assert second == [
        "check pair",
        "copy tokenizer",
        "pull target",
        "pull draft",
        "write repository",
        "write manifest",
    ]
    first, second_folder = pair_recipe.parent / "first", pair_recipe.parent / "second"
    for name in ("target/engine", "draft/engine", "tokenizer", "model_repository"):
        assert files(second_folder / name) == files(first / name)
    assert len(entries(store)) == 3

    made, pulled = (json.loads((folder / "manifest.json").read_text()) for folder in (first, second_folder))
    assert made["pulled"] == {}
    ours = {step: seconds for step, seconds in made["times"].items() if step.endswith(" target")}
    assert pulled["pulled"]["target"]["times"] == ours
    assert made["packages"]["torch"] == pulled["packages"]["torch"] == torch.__version__
    assert pulled["pulled"]["target"]["entry"] in {entry["digest"] for entry in entries(store)}
    assert "convert target" not in pulled["times"]


def test_a_second_build_of_either_folder_does_nothing(pair_recipe: Path, store: Path) -> None:
    for name in ("first", "second", "first", "second"):
        ran = build(pair_recipe, name, store)["ran"]
    assert ran == []


def test_another_draft_is_another_engine_and_the_same_target(pair_recipe: Path, store: Path) -> None:
    build(pair_recipe, "first", store)
    pair_recipe.write_text(pair_recipe.read_text().replace("float32", "float16"))
    ran = build(pair_recipe, "second", store)["ran"]
    assert {"pull target", "build draft"} <= set(ran)
    assert "pull draft" not in ran


def test_the_dry_run_says_what_the_store_has(pair_recipe: Path, store: Path) -> None:
    build(pair_recipe, "first", store)
    said = run("build", pair_recipe, "--output", pair_recipe.parent / "new", "--store", store, "--dry-run")
    assert "run   pull target -> " in said.stdout
    assert "trtspec store pull " in said.stdout
    assert not (pair_recipe.parent / "new").exists()


def test_a_corrupted_stored_engine_is_refused_until_it_is_removed(pair_recipe: Path, store: Path) -> None:
    build(pair_recipe, "first", store)
    largest = max((store / "objects").rglob("*"), key=lambda path: path.is_file() and path.stat().st_size)
    content = bytearray(largest.read_bytes())
    content[1000] ^= 1
    largest.write_bytes(content)

    second = pair_recipe.parent / "second"
    result = run("build", pair_recipe, "--output", second, "--store", store)
    assert isinstance(result.exception, StoreError)
    assert f"{largest.name} is corrupted" in str(result.exception)
    assert not (second / "target/engine").exists()

    assert run("store", "verify", store, "--remove").exit_code == 1
    assert run("store", "verify", store).exit_code == 0
    build(pair_recipe, "second", store)
    assert files(second / "target/engine") == files(pair_recipe.parent / "first/target/engine")
    assert run("store", "verify", store).exit_code == 0


def test_a_finished_build_is_pushed_by_hand(pair_recipe: Path, store: Path) -> None:
    output = pair_recipe.parent / "build"
    unfinished = run("store", "push", store, pair_recipe, "--output", output)
    assert "is not a finished build" in str(unfinished.exception)
    assert run("build", pair_recipe, "--output", output).exit_code == 0
    assert run("store", "push", store, pair_recipe, "--output", output).exit_code == 0
    assert {entry["role"] for entry in entries(store)} == PUSHED
    assert run("store", "push", store, pair_recipe, "--output", output).stderr.endswith("has it all\n")


def test_an_engine_replaced_by_another_build_is_not_pushed_to_the_store(
    pair_recipe: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would be found by the keys of a recipe of which it is not made."""
    output = pair_recipe.parent / "build"
    other = pair_recipe.with_name("other.yaml")
    other.write_text(pair_recipe.read_text().replace("float32", "float16"))

    def run_both(*args: Any) -> BuildResult:
        done = run_steps(*args)
        monkeypatch.undo()
        assert run("build", other, "--output", output).exit_code == 0
        return done

    monkeypatch.setattr("trtspec.pipeline.build.build.run_steps", run_both)
    result = run("build", pair_recipe, "--output", output, "--store", store)
    assert isinstance(result.exception, StoreError)
    assert "has changed since it was built" in str(result.exception)
    assert entries(store) == []


def test_a_build_directory_is_held_while_it_is_pushed(
    pair_recipe: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output, push, refused = pair_recipe.parent / "build", transfer.push, list[str]()

    def push_and_look(*args: Any) -> None:
        with pytest.raises(UnavailableError, match="another build is running here"):
            only_build(output).__enter__()
        refused.append(args[1].role)
        push(*args)

    monkeypatch.setattr(transfer, "push", push_and_look)
    build(pair_recipe, "build", store)
    assert set(refused) == PUSHED
