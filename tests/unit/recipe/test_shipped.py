"""The recipes in the package, as a wheel of it has them."""

from __future__ import annotations

import filecmp
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from trtspec.backends.table import load
from trtspec.recipe.shipped import TINY, shipped

ROOT = Path(__file__).parents[3]


def test_a_wheel_has_the_recipes_and_the_pair_and_nothing_else_of_them(tmp_path: Path) -> None:
    source = tmp_path / "source"
    skipped = shutil.ignore_patterns("__pycache__")
    for part in ("trtspec", "recipes", "model_repository"):
        shutil.copytree(ROOT / part, source / part, symlinks=True, ignore=skipped)
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, source / part)
    build = "from hatchling.build import build_wheel; build_wheel('..')"
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    assert not (source / "build").exists()
    with zipfile.ZipFile(next(tmp_path.glob("*.whl"))) as wheel:
        own = [name for name in wheel.namelist() if name.startswith("trtspec/recipe/recipes/")]
        wheel.extractall(tmp_path / "wheel", own)
    found = tmp_path / "wheel" / "trtspec" / "recipe" / "recipes"

    assert {file.name for file in found.glob("*.yaml")} == {
        file.name for file in (ROOT / "recipes").glob("*.yaml")
    }
    for part in (
        "recipe.yaml",
        "target/model.safetensors",
        "draft/model.safetensors",
        "draft/tokenizer.json",
    ):
        assert filecmp.cmp(found / "tiny" / part, ROOT / "recipes" / "tiny" / part, shallow=False)
    assert not [name for name in own if name.endswith(".py")]


def test_init_copies_one(tmp_path: Path) -> None:
    said = trtspec("init", "--recipe", "llama-3.1-8b-h100", folder=tmp_path)

    assert (said.returncode, said.stderr) == (0, "wrote recipe.yaml\n")
    assert (tmp_path / "recipe.yaml").read_bytes() == (ROOT / "recipes/llama-3.1-8b-h100.yaml").read_bytes()


def test_another_name_lists_them(tmp_path: Path) -> None:
    said = trtspec("init", "--recipe", "llama", folder=tmp_path)

    assert said.returncode == 1
    assert "trtspec ships no such recipe" in said.stderr
    for file in (ROOT / "recipes").glob("*.yaml"):
        assert file.stem in said.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words", [("--from", "vllm serve a/b", "--recipe", "x"), ("--recipe", "x", "--gpu", "h100")]
)
def test_init_refuses_a_shipped_recipe_together_with_another_source(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    assert trtspec("init", *words, folder=tmp_path).returncode == 2


def test_shipped_recipes_load_from_the_package() -> None:
    assert load(TINY / "recipe.yaml").recipe.name == "tiny"
    assert load(shipped("llama-3.1-8b-h100")).recipe.hardware.gpu == "h100"
