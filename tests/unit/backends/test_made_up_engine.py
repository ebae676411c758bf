"""A folder and a name in the table are all that an engine is: nothing else of trtspec knows this one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HOUSE = Path(__file__).parents[3]


@pytest.fixture
def recipe(pair_recipe: Path) -> Path:
    text = pair_recipe.read_text().replace("torch", "abacus")
    pair_recipe.write_text(text.replace(", dtype: float32", ""))
    return pair_recipe


def run(*words: object) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "tests.fakes.made_up_engine", *map(str, words)]
    return subprocess.run(line, cwd=HOUSE, capture_output=True, text=True, check=False)


def test_its_recipe_is_checked(recipe: Path) -> None:
    said = run("check", recipe)
    assert (said.returncode, said.stderr) == (0, "")
    assert "the recipe is valid" in said.stdout


def test_check_refuses_methods_and_layouts_that_a_made_up_engine_lacks(recipe: Path) -> None:
    text = recipe.read_text()
    recipe.write_text(f"{text}speculation: {{method: suffix}}\nserving: {{layout: bls}}\n")
    said = run("check", recipe)
    assert said.returncode == 1
    assert "abacus does not run suffix" in said.stderr
    assert "abacus has no layout bls" in said.stderr


def test_plan_chooses_the_newest_release_of_a_made_up_engine(recipe: Path) -> None:
    said = run("plan", recipe, "--json")
    assert said.returncode == 0, said.stderr
    choices = {choice["key"]: choice["value"] for choice in json.loads(said.stdout)["values"]}
    assert (choices["engine.backend"], choices["engine.release"]) == ("abacus", "2.0")


def test_its_launch_is_built_and_no_engine(recipe: Path) -> None:
    said = run("build", recipe, "--dry-run")
    assert said.returncode == 0, said.stderr
    steps = [line.split(" -> ")[0] for line in said.stdout.splitlines() if line.startswith("run ")]
    assert "run   write launch" in steps
    assert not [step for step in steps if step.startswith("run   build")]


def test_a_recipe_moves_to_it(pair_recipe: Path) -> None:
    said = run("migrate", pair_recipe, "--to", "abacus")
    assert said.returncode == 0, said.stderr
    moved = pair_recipe.with_name("pair-abacus.yaml")
    assert run("check", moved).returncode == 0


def test_a_recipe_is_made_of_its_command(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    said = run("init", path, "--from", "abacus org/big --guess org/small --beads 3", "--gpu", "none")
    assert said.returncode == 0, said.stderr
    text = path.read_text()
    assert "backend: abacus" in text
    assert "max_draft_len: 3" in text


def test_the_page_of_methods_has_a_column_for_a_made_up_engine() -> None:
    said = run("methods.md")
    head = next(line for line in said.stdout.splitlines() if line.startswith("| method |"))
    row = next(line for line in said.stdout.splitlines() if line.startswith("| `draft_model` |"))
    assert head.endswith("| `abacus` |")
    assert row.endswith("| yes |")
