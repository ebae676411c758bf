"""`trtspec deploy MODEL`: the recipe that it writes, and the build that it makes of it."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.hub import Hub
from tests.support.command_line import trtspec
from trtspec.backends.table import load, loads
from trtspec.cli.deploy import ModelChoices, recipe_text

TINY = Path(__file__).parents[3] / "recipes" / "tiny"


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.cli.deploy.find_gpus", list)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A folder with links to the tiny pair, as `Tiny-Target` and `draft`."""
    (tmp_path / "Tiny-Target").symlink_to(TINY / "target")
    (tmp_path / "draft").symlink_to(TINY / "draft")
    return tmp_path


def test_a_model_becomes_a_recipe_and_a_build(tmp_path: Path) -> None:
    model = TINY / "target"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        words = ("deploy", model, "--draft", TINY / "draft", "--http-port", port)
        said = trtspec(*words, folder=tmp_path)
        again = trtspec(*words, folder=tmp_path)

    recipe = load(tmp_path / "target.yaml").recipe
    assert (recipe.backend, recipe.speculation.method.kind) == ("torch", "draft_model")
    assert (tmp_path / "build/target/model_repository").is_dir()
    assert "wrote target.yaml" in said.stderr
    assert "10 of 10 steps run in" in said.stderr
    # All that is missing is the port.
    assert (said.returncode, f"127.0.0.1:{port}: the port is in use" in said.stderr) == (1, True)
    assert "target.yaml is there already, and is used" in again.stderr
    assert "steps run" not in again.stderr


def test_a_dry_run_shows_the_recipe_and_writes_nothing(models: Path) -> None:
    said = trtspec("deploy", "./Tiny-Target", "--dry-run", folder=models)

    assert (said.returncode, said.stderr) == (0, "")
    found = loads(said.stdout.encode(), models / "tiny-target.yaml").recipe
    assert (found.name, found.speculation.method.kind, found.hardware.gpu) == ("tiny-target", "ngram", "none")
    assert {file.name for file in models.iterdir()} == {"Tiny-Target", "draft"}


def test_a_model_of_the_hub(tmp_path: Path) -> None:
    choices = ModelChoices(draft="Qwen/Qwen3-0.6B", gpu="h100")
    found = loads(recipe_text("Qwen/Qwen3-8B", choices).encode(), tmp_path / "qwen3-8b.yaml").recipe

    assert (found.name, found.target.model, found.hardware.gpu) == ("qwen3-8b", "Qwen/Qwen3-8B", "h100")
    assert found.draft is not None
    assert found.draft.model == "Qwen/Qwen3-0.6B"


def test_a_model_that_the_hub_does_not_give_leaves_no_recipe(tmp_path: Path) -> None:
    with Hub(TINY / "target") as hub:
        hub_alone = hub.environment(tmp_path / "home")
        (tmp_path / "here").mkdir()
        for words in (["owner/nothing"], ["owner/gated"], ["owner/model", "--draft", "owner/nothing"]):
            # The Hub's address is read at an import, so that this is a process of its own.
            command = [sys.executable, "-m", "trtspec", "deploy", *words, "--gpu", "h100"]
            said = subprocess.run(
                command, cwd=tmp_path / "here", env=hub_alone, capture_output=True, text=True
            )
            assert (said.returncode, "wrote" in said.stderr) == (1, False), said.stderr
            assert words[-1] in said.stderr
            assert not list((tmp_path / "here").iterdir())


def test_deploy_of_a_model_keeps_an_existing_recipe_and_refuses_that_of_another(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(models)
    recipe = models / "target.yaml"
    recipe.write_text(recipe_text(TINY / "target", ModelChoices()))
    taken = ("--http-port", "1", "--grpc-port", "1")
    said = trtspec("deploy", TINY / "target", "--draft", TINY / "draft", *taken, folder=models)
    assert "target.yaml stays as it is: --draft, --method and --gpu are for a new one" in said.stderr
    assert "ngram" in recipe.read_text()

    recipe.write_text(recipe_text("another/model", ModelChoices()))
    said = trtspec("deploy", TINY / "target", folder=models)
    assert said.returncode == 1
    assert "target.yaml: is there already, and is not for" in said.stderr


@pytest.mark.parametrize(
    ("words", "status", "problem"),
    [
        (["nowhere"], 1, "nowhere: is no recipe or folder, and no model of the Hub, which is OWNER/NAME"),
        (["./no/where"], 1, "./no/where: is no recipe or folder"),
        (["nowhere.yaml"], 1, "nowhere.yaml: 1 problem in this recipe"),
        (["."], 1, ".: is a folder without a model"),
        (["built"], 1, "built: is a build, which its recipe serves"),
        (["./Tiny-Target", "--gpu", "h101"], 2, "'h101' is none of b200"),
        (["./Tiny-Target", "--method", "x"], 2, "'x' is none of draft_model"),
        (["recipe.yaml", "--draft", "a/b"], 2, "recipe.yaml is a recipe"),
    ],
)
def test_deploy_of_something_that_is_no_model_is_refused_and_writes_nothing(
    models: Path, words: list[str], status: int, problem: str
) -> None:
    (models / "built").mkdir()
    (models / "built" / "manifest.json").touch()
    before = sorted(models.rglob("*"))
    said = trtspec("deploy", *words, folder=models)

    assert said.returncode == status
    assert problem in said.stderr
    assert sorted(models.rglob("*")) == before
