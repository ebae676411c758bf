"""`trtllm-build` for the engines of every recipe, to the letter and for every release.

UPDATE_GOLDEN=1 writes them anew.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.fakes.trtllm_build import parser
from tests.support.releases import each_release
from trtspec.backends.table import load
from trtspec.cli.app import app

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/commands"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@each_release(RECIPES)
def test_trtllm_build_commands_of_every_recipe_are_as_recorded_for_each_release(
    recipe: Path, release: str, hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = recipe.read_text()
    assert text.count("\nengine:\n") == 1
    Path(recipe.name).write_text(text.replace("\nengine:\n", f"\nengine:\n  release: {release}\n"))
    result = CliRunner().invoke(app, ["plan", recipe.name, "--commands"])
    assert result.exit_code == 0, result.output
    lines = []
    for line in result.stdout.splitlines():
        if line.startswith("trtllm-build "):
            parser(release).parse_args(shlex.split(line)[1:])  # or SystemExit
            command, *options = line.split(" --")
            lines += [command, *(f"    --{option}" for option in options)]
    assert lines.count("trtllm-build") == len(load(recipe).recipe.models)
    output = "\n".join(lines) + "\n"

    golden = GOLDEN / f"recipe_{recipe.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(output)
    assert output == golden.read_text()
