"""The command itself: what it prints of a build, its status, and what it refuses."""

from __future__ import annotations

import json
import shlex
import shutil
import stat
import sys
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from tests.unit.measure.verify.conftest import build

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


def second_opinion(folder: Path, says: str) -> Path:
    """A stand-in for a Python that has vLLM: it answers what `says`, an expression, makes of a prompt."""
    script = folder / "python"
    script.write_text(
        f"#!{sys.executable}\n"
        "import json, sys\n"
        "asked = json.load(open(sys.argv[2]))\n"
        "assert asked['dtype'] == 'float32' and asked['revision'] is None, asked\n"
        f"answers = [{says} for prompt in asked['prompts']]\n"
        "json.dump({'version': '0', 'answers': answers}, open(sys.argv[3], 'w'))\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return script


def test_a_second_opinion_that_contradicts_is_a_fault_with_its_place(built: Path, tmp_path: Path) -> None:
    script = second_opinion(tmp_path, "{'token_ids': [5, 6, 0], 'rows': [[[5, -0.1]]] * 3}")
    done = trtspec("verify", *place(built), *FEW, "--second-opinion", script)
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[-1] == "not proved lossless: vLLM 0 contradicts plain decoding by more than rounding"
    (fault,) = [line for line in lines if line.startswith("fault")]
    assert fault == "fault  code-1, token 0 (vLLM 0, one by one)"
    again = next(line.partition("again: ")[2] for line in lines if "again: " in line)
    assert shlex.split(again)[:3] == ["trtspec", "verify", str(built / "recipe.yaml")]
    assert "--prompt code-1" in again
    assert again.count("--prompt") == again.count("--draws") == 1


def test_a_second_opinion_that_fails_is_told_with_its_words(built: Path, tmp_path: Path) -> None:
    done = trtspec("verify", *place(built), *FEW, "--second-opinion", second_opinion(tmp_path, "no_such"))
    assert done.returncode == 1
    assert "vLLM did not answer" in done.stderr
    assert "no_such" in done.stderr


def test_json_has_every_difference_and_the_verdict(built: Path) -> None:
    done = trtspec("verify", *place(built), *FEW, "--json")
    found = json.loads(done.stdout)
    assert found["lossless"] is True
    assert found["noise"]["num_draft_tokens"] == 0
    assert found["tolerance"]["reason"].startswith("the rounding of float32")


def test_a_workload_has_the_prompts(built: Path, tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("def one():\ndef two():\n")
    options = ("--max-tokens", 8, "--draws", 0, "--num-draft-tokens", 1, "--json")
    done = trtspec("verify", *place(built), "--workload", tmp_path / "few.txt", *options)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["noise"]["texts"] == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "name a recipe"),
        (("--url", "http://127.0.0.1:9"), "--tokenizer"),
        (("recipe.yaml", "--baseline", "http://127.0.0.1:9"), "--baseline"),
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


def test_a_prompt_that_is_not_there_is_told_the_names(built: Path) -> None:
    done = trtspec("verify", *place(built), "--prompt", "nobody")
    assert done.returncode == 1
    assert "code-1" in done.stderr
