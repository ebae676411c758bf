"""The command itself: what it prints of a build, its status, and what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from tests.unit.measure.verify.conftest import build

TINY = Path(__file__).parents[4] / "recipes/tiny"
FEW = ("--prompt", "code-1", "--max-tokens", "16", "--draws", "0", "--num-draft-tokens", "2")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a recipe with its build."""
    folder = tmp_path_factory.mktemp("built")
    build(folder, "float32")
    return folder


def place(built: Path) -> tuple[object, ...]:
    return built / "recipe.yaml", "--output", built / "build"


def test_a_lossless_build_is_told_so_in_a_sentence(built: Path) -> None:
    done = trtspec("verify", *place(built), *FEW)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == (
        "lossless: all 2 greedy answers with drafts are the same as the target's alone"
    )
    assert "K=2, 4 at once" not in done.stdout
    assert "K=2, 8 at once" in done.stdout


def test_json_has_every_difference_and_the_verdict(built: Path) -> None:
    done = trtspec("verify", *place(built), *FEW, "--json")
    found = json.loads(done.stdout)
    assert found["lossless"] is True
    assert found["noise"]["num_draft_tokens"] == 0
    assert found["tolerance"]["reason"].startswith("the rounding of float32")


def test_a_workload_has_the_prompts(built: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("def one():\ndef two():\n")
    options = ("--max-tokens", 8, "--draws", 0, "--num-draft-tokens", 1, "--cases", "none", "--json")
    done = trtspec("verify", *place(built), "--workload", tmp_path / "few.txt", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["noise"]["texts"] == 2


def test_cases_are_told_with_what_they_found(built: Path) -> None:
    done = trtspec("verify", *place(built), *FEW, "--cases", "stops,tools")
    assert done.returncode == 0, done.stderr
    rows = [line.split()[:2] for line in done.stdout.splitlines()]
    assert ["stops", "ok"] in rows
    assert ["tools", "skipped"] in rows
    assert "no chats of OpenAI's API" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name a recipe"),
        (("--url", "http://127.0.0.1:9"), "--tokenizer"),
        (("recipe.yaml", "--cases", "nobody"), "no case is nobody"),
    ],
)
def test_wrong_usage_is_refused(arguments: tuple[str, ...], told: str) -> None:
    done = trtspec("verify", *arguments)
    assert done.returncode == 2
    assert told in done.stderr


def test_a_recipe_that_is_not_built_is_told_how_to_build_it(built: Path, tmp_path: Path) -> None:
    done = trtspec("verify", built / "recipe.yaml", "--output", tmp_path)
    assert done.returncode == 1
    assert f"trtspec build {built / 'recipe.yaml'} --output {tmp_path}" in done.stderr


def test_engines_that_are_models_of_their_own_are_verified_where_they_are_served(
    built: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "bls"
    shutil.copytree(built / "build", folder)
    config = folder / "model_repository/speculative_llm/config.pbtxt"
    config.write_text(config.read_text().replace('string_value: "torch"', 'string_value: "bls"'))
    done = trtspec("verify", built / "recipe.yaml", "--output", folder)
    assert done.returncode == 1
    assert "--url http://127.0.0.1:8000" in done.stderr


def test_another_engines_server_is_for_prove(tmp_path: Path) -> None:
    recipe, build = tmp_path / "vllm.yaml", tmp_path / "build"
    models = f"target: {{model: {TINY}/target}}\ndraft: {{model: {TINY}/draft}}\n"
    recipe.write_text(f"name: tiny\n{models}engine: {{backend: vllm}}\nhardware: {{gpu: none}}\n")
    assert trtspec("build", recipe, "--output", build).returncode == 0
    done = trtspec("verify", recipe, "--output", build)
    assert done.returncode == 1
    assert f"trtspec prove {recipe}" in " ".join(done.stderr.split())


def test_a_prompt_that_is_not_there_is_told_the_names(built: Path) -> None:
    done = trtspec("verify", *place(built), "--prompt", "nobody")
    assert done.returncode == 1
    assert "code-1" in done.stderr
