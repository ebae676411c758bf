from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from trtspec.backends.table import load
from trtspec.base.errors import RecipeError, TrtspecError
from trtspec.cli.app import app
from trtspec.pipeline.store.store import Entry, Store, platform_of
from trtspec.pipeline.store.transfer import push
from trtspec.recipe.releases import RELEASES, release_of

RECIPE = """
name: {name}
target: {{model: example/target}}
draft: {{model: example/draft}}
engine: {{release: {release}}}
hardware: {{gpu: {gpu}, count: {count}}}
"""


@pytest.fixture
def recipes(tmp_path: Path, without_network: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three recipes whose models are nowhere, on a machine without network."""
    monkeypatch.chdir(tmp_path)
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
                "image": RELEASES["1.2.1"].pinned,
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
    assert job["script"] == ["echo 'There is nothing to build.'"]


@pytest.mark.parametrize("names", [["one.yaml", "eight.yaml"], ["laptop.yaml"]])
def test_jobs_of_gitlab_are_in_the_pipelines_of_merge_requests(recipes: Path, names: list[str]) -> None:
    """Where the parent is one, only jobs with rules are (GitLab Docs, troubleshooting of downstream ones)."""
    jobs = json.loads(run(*names, "--system", "gitlab").stdout)
    assert all(job["rules"] == [{"when": "on_success"}] for job in jobs.values())


def test_the_matrix_refuses_two_recipes_of_the_same_name(recipes: Path) -> None:
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
def test_the_matrix_ends_with_status_2_without_recipes_or_for_an_unknown_system(
    recipes: Path, args: list[str]
) -> None:
    assert run(*args).exit_code == 2


def stored(folder: Path, recipe: str, gpu: str = "h200", revision: str = "a" * 40) -> str:
    """A store with the build of a recipe, for a GPU and from one commit of each model."""
    loaded = load(Path(recipe))
    models = {role: {"revision": revision} for role in loaded.recipe.models}
    manifest = {"recipe": loaded.recipe.digest, "models": models}
    platform = platform_of(gpu, release_of(loaded.recipe.engine.release))
    folder.mkdir(exist_ok=True)
    entry = Entry("pair", "one", platform, "c" * 64, "2026-01-01T00:00:00+00:00", {}, (), manifest)
    push(Store(str(folder)), entry, folder, lambda *_: None)
    return str(folder)


def pin(recipe: str) -> None:
    text = Path(recipe).read_text()
    for role in ("target", "draft"):
        text = text.replace(f"example/{role}}}", f"example/{role}, revision: {'a' * 40}}}")
    Path(recipe).write_text(text)


def jobs_of(result: Result) -> list[str]:
    return [job["name"] for job in json.loads(result.stdout)["include"]]


def test_the_matrix_leaves_out_a_recipe_that_the_store_already_has(recipes: Path) -> None:
    pin("one.yaml")
    result = run("one.yaml", "--store", stored(recipes / "store", "one.yaml"))
    assert result.exit_code == 0, result.exception
    assert json.loads(result.stdout) == {"include": []}
    assert "one.yaml: the store has it" in result.stderr


def test_the_matrix_leaves_out_a_stored_recipe_without_a_draft(recipes: Path) -> None:
    text = Path("one.yaml").read_text().replace("draft: {model: example/draft}\n", "")
    Path("one.yaml").write_text(f"{text}speculation: {{method: ngram}}\n")
    assert jobs_of(run("one.yaml")) == ["one"]
    pin("one.yaml")
    result = run("one.yaml", "--store", stored(recipes / "store", "one.yaml"))
    assert (jobs_of(result), result.exit_code) == ([], 0)


def test_the_matrix_does_not_search_the_store_for_a_recipe_with_nothing_to_build(recipes: Path) -> None:
    result = run("laptop.yaml", "--store", stored(recipes / "store", "one.yaml"))
    assert (jobs_of(result), result.exit_code) == ([], 0)
    assert "torch backend, nothing to build" in result.stderr


@pytest.mark.parametrize("other", [{"gpu": "l40s"}, {"revision": "b" * 40}])
def test_the_matrix_keeps_a_recipe_stored_only_for_another_gpu_or_revision(
    recipes: Path, other: dict[str, str]
) -> None:
    pin("one.yaml")
    assert jobs_of(run("one.yaml", "--store", stored(recipes / "store", "one.yaml", **other))) == ["one"]


def test_a_recipe_that_was_changed_is_a_job(recipes: Path) -> None:
    pin("one.yaml")
    url = stored(recipes / "store", "one.yaml")
    Path("one.yaml").write_text(Path("one.yaml").read_text() + "speculation: {max_draft_len: 7}\n")
    assert jobs_of(run("one.yaml", "--store", url)) == ["one"]


def test_in_doubt_it_is_a_job(recipes: Path) -> None:
    """The Hub, which cannot be reached, would have to say what is the newest commit."""
    result = run("one.yaml", "--store", stored(recipes / "store", "one.yaml"))
    assert jobs_of(result) == ["one"]
    assert "the build will ask the store" in result.stderr


def test_a_store_that_only_the_runners_may_read(recipes: Path) -> None:
    """GitHub's own machine makes the matrix, and has no rights; those that build have theirs."""
    (recipes / "file").write_text("no folder\n")
    result = run("one.yaml", "laptop.yaml", "--store", str(recipes / "file"))
    assert (jobs_of(result), result.exit_code) == (["one"], 0)
    assert "the builds will ask the store" in result.stderr
