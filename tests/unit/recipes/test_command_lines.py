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
from trtspec.cli.app import app
from trtspec.recipe.releases import RELEASES

ROOT = Path(__file__).parents[3]
GOLDEN = ROOT / "tests/golden/commands"
RECIPES = sorted((ROOT / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_command_lines(
    path: Path, release: str, hub_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = path.read_text()
    assert text.count("\nengine:\n") == 1
    Path(path.name).write_text(text.replace("\nengine:\n", f"\nengine:\n  release: {release}\n"))
    result = CliRunner().invoke(app, ["plan", path.name, "--commands"])
    assert result.exit_code == 0, result.output
    lines = []
    for line in result.stdout.splitlines():
        if line.startswith("trtllm-build "):
            parser(release).parse_args(shlex.split(line)[1:])  # or SystemExit
            command, *options = line.split(" --")
            lines += [command, *(f"    --{option}" for option in options)]
    assert lines.count("trtllm-build") == 2
    output = "\n".join(lines) + "\n"

    golden = GOLDEN / f"recipe_{path.stem}.txt"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(output)
    assert output == golden.read_text()
