from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trtspec.cli.app import app
from trtspec.errors import RecipeError, TrtspecError
from trtspec.recipe.releases import RELEASES

RECIPE = """
name: {name}
target: {{model: example/target}}
draft: {{model: example/draft}}
engine: {{release: {release}}}
hardware: {{gpu: {gpu}, count: {count}}}
"""


@pytest.fixture
def recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three recipes whose models are nowhere, on a machine without network."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    write("one", gpu="h200", count=1)
    write("eight", gpu="h200", count=8, release="1.1.0")
    Path("laptop.yaml").write_text(
        "name: laptop\ntarget: {model: a/b}\ndraft: {model: c/d}\nhardware: {gpu: none}\n"
    )
    return tmp_path


def write(name: str, file: str = "", release: str = "1.2.1", **hardware: Any) -> None:
    Path(file or f"{name}.yaml").write_text(RECIPE.format(name=name, release=release, **hardware))


def run(*args: str) -> Result:
    return CliRunner().invoke(app, ["ci", "matrix", *args])


def test_the_matrix_of_github(recipes: Path) -> None:
    result = run("one.yaml", "./eight.yaml", "laptop.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout.count("\n") == 1
    assert json.loads(result.stdout) == {
        "include": [
            {
                "name": "one",
                "recipe": "one.yaml",
                "gpu": "h200",
                "gpus": 1,
                "release": "1.2.1",
                "image": RELEASES["1.2.1"].image,
                "runs_on": ["self-hosted", "gpu", "h200x1"],
            },
            {
                "name": "eight",
                "recipe": "eight.yaml",
                "gpu": "h200",
                "gpus": 8,
                "release": "1.1.0",
                "image": RELEASES["1.1.0"].image,
                "runs_on": ["self-hosted", "gpu", "h200x8"],
            },
        ]
    }
    assert result.stderr == "laptop.yaml: torch backend, nothing to build on a GPU\n"


def test_nothing_to_build(recipes: Path) -> None:
    result = run("laptop.yaml")
    assert (result.exit_code, result.stdout) == (0, '{"include": []}\n')


def test_the_child_pipeline_of_gitlab(recipes: Path) -> None:
    result = run("one.yaml", "eight.yaml", "--system", "gitlab")
    assert result.exit_code == 0
    jobs = json.loads(result.stdout)
    assert list(jobs) == ["engine-build one", "engine-build eight"]
    eight = jobs["engine-build eight"]
    assert eight["image"]["name"] == RELEASES["1.1.0"].image
    assert eight["tags"] == ["self-hosted", "gpu", "h200x8"]
    assert eight["resource_group"] == "engine-build-eight"
    assert eight["variables"]["RECIPE"] == "eight.yaml"
    assert eight["artifacts"]["reports"] == {"junit": "report/junit.xml"}


def test_gitlab_gets_a_job_where_there_is_nothing_to_build(recipes: Path) -> None:
    (job,) = json.loads(run("laptop.yaml", "--system", "gitlab").stdout).values()
    assert job == {"script": ["echo 'There is nothing to build.'"]}


def test_two_recipes_of_one_name(recipes: Path) -> None:
    write("one", file="other.yaml", gpu="h100", count=1)
    result = run("one.yaml", "other.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert isinstance(result.exception, TrtspecError)
    assert str(result.exception) == "other.yaml: has the name of one.yaml: one"


def test_a_recipe_that_is_wrong(recipes: Path) -> None:
    write("wrong", gpu="h300", count=1)
    result = run("one.yaml", "wrong.yaml")
    assert (result.exit_code, result.stdout) == (1, "")
    assert isinstance(result.exception, RecipeError)


@pytest.mark.parametrize("args", [[], ["one.yaml", "--system", "jenkins"]])
def test_wrong_usage(recipes: Path, args: list[str]) -> None:
    assert run(*args).exit_code == 2
