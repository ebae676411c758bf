from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from typer.testing import CliRunner, Result

from trtspec.backends.table import all_releases, load
from trtspec.base.errors import ModelError, PairError, RecipeError, TrtspecError, UnavailableError
from trtspec.cli.app import app
from trtspec.recipe.schema import json_schema

PAIR = (
    "name: pair\ntarget: {model: ./target, dtype: bfloat16}\ndraft: {model: ./draft, dtype: bfloat16}\n"
    "hardware: {gpu: h100}\n"
)


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, [str(arg) for arg in args])


def failure(result: Result) -> BaseException:
    assert result.exception is not None
    return result.exception


@pytest.mark.parametrize(
    ("words", "usage"),
    [
        (("build",), "build [OPTIONS] RECIPE..."),
        (("verify",), "verify [OPTIONS] [RECIPE]"),
        (("generate",), "generate [OPTIONS] PROMPT"),
        (("store", "pull"), "store pull [OPTIONS] URL NAME"),
        (("deploy", "stop"), "deploy stop [OPTIONS] [NAME]"),
    ],
)
def test_usage_is_written_as_in_manual_pages(words: tuple[str, ...], usage: str) -> None:
    assert run(*words, "-h").stdout.startswith(f"Usage: trtspec {usage}\n")


class TestInit:
    def test_init_writes_a_recipe_that_passes_the_check(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        path = tmp_path / "recipe.yaml"
        result = run("init", path)
        assert (result.exit_code, result.stdout) == (0, "")
        assert result.stderr == f"wrote {path}\n"
        assert load(path).recipe.name == "llama-3.1-8b-h100"
        assert [child.name for child in tmp_path.iterdir()] == ["recipe.yaml"]

    def test_a_folder_gets_a_recipe_inside(self, tmp_path: Path) -> None:
        assert run("init", tmp_path).exit_code == 0
        assert (tmp_path / "recipe.yaml").is_file()

    def test_init_keeps_a_file_that_is_there_unless_forced(self, tmp_path: Path) -> None:
        path = tmp_path / "recipe.yaml"
        path.write_text("mine")
        error = failure(run("init", path))
        assert isinstance(error, TrtspecError)
        assert error.repair == f"choose another name, or: trtspec init {path} --force"
        assert path.read_text() == "mine"
        assert run("init", path, "--force").exit_code == 0
        assert path.read_text() != "mine"

    def test_a_model_is_no_name_of_a_recipe(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        error = failure(run("init", "owner/model"))
        assert isinstance(error, TrtspecError)
        assert error.repair == "trtspec init model.yaml; a model is served by: trtspec deploy owner/model"
        assert not list(tmp_path.iterdir())

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        assert isinstance(failure(run("init", tmp_path / "file/recipe.yaml")), OSError)


def test_schema_prints_json_alone() -> None:
    result = run("schema")
    assert (result.exit_code, result.stderr) == (0, "")
    assert json.loads(result.stdout) == json_schema(all_releases())


class TestCheck:
    @pytest.fixture
    def pair(
        self, model_folder: Callable[..., Path], write_recipe: Callable[..., Path]
    ) -> Callable[..., Path]:
        def write(text: str = PAIR, target: Any = None, draft: Any = None) -> Path:
            model_folder("target", **{"hidden_size": 32, **(target or {})})
            model_folder("draft", **(draft or {}))
            return write_recipe(text)

        return write

    def test_a_pair_that_fits(self, pair: Callable[..., Path]) -> None:
        result = run("check", pair())
        assert (result.exit_code, result.stderr) == (0, "")
        assert result.stdout.splitlines()[-1] == "the recipe is valid, and the pair fits"
        rows = {line.split("  ")[0]: line.split() for line in result.stdout.splitlines() if "  " in line}
        assert rows["parameters"] == ["parameters", "19.6", "k", "7.47", "k"]
        assert rows["family"] == ["family", "llama", "llama"]

    def test_differences_are_listed_with_their_effect(self, pair: Callable[..., Path]) -> None:
        result = run("check", pair(target={"vocab_size": 384}))
        assert result.exit_code == 0
        assert "differs  padded vocabulary: 384 rows" in result.stdout
        assert "none for token matching" in result.stdout

    def test_json_for_machines(self, pair: Callable[..., Path]) -> None:
        path = pair(target={"vocab_size": 384})
        result = run("check", path, "--json")
        answer = json.loads(result.stdout)
        assert (answer["recipe"], answer["ok"], answer["not_checked"]) == (str(path), True, {})
        assert answer["models"]["target"]["vocab_size"] == 384
        assert [finding["severity"] for finding in answer["findings"]] == ["note"]

    @pytest.mark.parametrize("flags", [[], ["--json"]])
    def test_a_pair_that_is_refused_is_reported_whole(
        self, pair: Callable[..., Path], byte_level: Callable[..., Tokenizer], flags: list[str]
    ) -> None:
        path = pair(draft={"tokenizer": byte_level(text=["completely other words"])})
        result = run("check", path, *flags)
        error = failure(result)
        assert isinstance(error, PairError)
        assert error.subject == str(path)
        if flags:
            assert json.loads(result.stdout)["ok"] is False
        else:
            assert "refused  token ids: " in result.stdout
            assert "fits" not in result.stdout

    def test_a_missing_folder_names_the_model(self, write_recipe: Callable[..., Path]) -> None:
        path = write_recipe(PAIR)
        error = failure(run("check", path))
        assert isinstance(error, ModelError)
        assert error.subject == str(path.parent / "target")

    def test_problems_of_the_recipe_as_json(self, write_recipe: Callable[..., Path]) -> None:
        path = write_recipe(PAIR + "engine: {max_batch_siz: 3}\n")
        result = run("check", path, "--json")
        assert isinstance(failure(result), RecipeError)
        assert json.loads(result.stdout) == {
            "recipe": str(path),
            "ok": False,
            "findings": [
                {
                    "subject": "engine.max_batch_siz",
                    "problem": "unknown key",
                    "repair": "did you mean max_batch_size?",
                    "severity": "error",
                    "effect": None,
                    "line": 5,
                }
            ],
        }


class TestHub:
    TEXT = PAIR.replace("./draft", "someone/draft")

    @pytest.fixture(autouse=True)
    def cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        """An empty Hub cache; huggingface_hub reads its place when it is imported."""
        from huggingface_hub import constants

        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        return tmp_path / "hub"

    def put(self, cache: Path, folder: Path) -> Path:
        """Moves a folder into the cache as snapshot_download lays it out."""
        model = cache / "models--someone--draft"
        (model / "refs").mkdir(parents=True)
        (model / "refs/main").write_text("0123abc")
        (model / "snapshots").mkdir()
        return folder.rename(model / "snapshots/0123abc")

    def test_a_model_that_is_not_here_ends_a_check_with_an_error(
        self, model_folder: Callable[..., Path], write_recipe: Callable[..., Path]
    ) -> None:
        model_folder("target")
        path = write_recipe(self.TEXT)
        result = run("check", path)
        assert result.exit_code == 1
        error = failure(result)
        assert isinstance(error, UnavailableError)
        assert "the pair was not checked: the draft someone/draft is not on this machine" in error.problem
        assert error.repair == "hf download someone/draft, or write a model's folder in the recipe"
        assert result.stdout.splitlines()[-1] == "the recipe is valid"
        answer = json.loads(run("check", path, "--json").stdout)
        assert list(answer["not_checked"]) == ["draft"]
        assert list(answer["models"]) == ["target"]

    def test_a_target_alone_is_no_pair(
        self, model_folder: Callable[..., Path], write_recipe: Callable[..., Path]
    ) -> None:
        text = (
            "name: alone\ntarget: {model: MODEL, dtype: bfloat16}\nspeculation: {method: ngram}\n"
            "hardware: {gpu: h100}\n"
        )
        model_folder("target")
        here = run("check", write_recipe(text.replace("MODEL", "./target")))
        assert (here.stdout.splitlines()[-1], here.stderr) == ("the recipe is valid", "")
        away = run("check", write_recipe(text.replace("MODEL", "someone/target")))
        assert away.exit_code == 1
        assert "the model was not checked: the target someone/target is not on" in str(failure(away))
        assert away.stdout.splitlines()[-1] == "the recipe is valid"

    def test_a_cached_model_is_checked(
        self, model_folder: Callable[..., Path], write_recipe: Callable[..., Path], cache: Path
    ) -> None:
        model_folder("target", hidden_size=32)
        self.put(cache, model_folder("draft"))
        result = run("check", write_recipe(self.TEXT))
        assert result.exit_code == 0
        assert "and the pair fits" in result.stdout

    def test_a_half_downloaded_model_ends_a_check_with_an_error(
        self, model_folder: Callable[..., Path], write_recipe: Callable[..., Path], cache: Path
    ) -> None:
        model_folder("target", hidden_size=32)
        (self.put(cache, model_folder("draft")) / "model.safetensors").unlink()
        result = run("check", write_recipe(self.TEXT))
        assert result.exit_code == 1
        assert "is incomplete in this machine's Hub cache" in str(failure(result))
