"""The previews of the shipped recipes, before anything is built, to the letter: for a shell, and for Compose.

They are those of somebody without docker and without a GPU. UPDATE_GOLDEN=1 writes them anew. A shell runs
the commands against programs that say how they were called, and the schema of Compose's specification judges
the files.
"""

from __future__ import annotations

import gzip
import json
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from jsonschema import Draft7Validator
from typer.testing import CliRunner

import trtspec
from tests.golden.test_containers import SOMEBODY, check
from trtspec import __version__
from trtspec.base import yaml11
from trtspec.cli.app import app
from trtspec.pipeline.containers import engine
from trtspec.recipe.releases import RELEASES

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml"))
GOLDEN = Path(__file__).with_name("previews")
SCHEMA = Path(__file__).parents[1] / "data/compose/compose-spec.json.gz"
# Says its name and its words, and what it is given of the secrets.
SAYS = f"""#!{sys.executable}
import json, os, sys
name = os.path.basename(sys.argv[0])
if name == "openssl":
    print("s3cret")
else:
    print(json.dumps([name, *sys.argv[1:], os.environ["TRTSPEC_NAMING"]]))
"""


@pytest.fixture(autouse=True)
def somebody(monkeypatch: pytest.MonkeyPatch, hub_cache: Path, tmp_path: Path) -> None:
    monkeypatch.setattr(engine, "find_surroundings", lambda: SOMEBODY)
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    monkeypatch.setenv("TRTSPEC_CONTAINERS", "docker")
    # It plans once for both forms.
    monkeypatch.setattr(trtspec, "plan", cache(trtspec.plan), raising=False)


def preview(recipe: Path, *words: str) -> tuple[str, str]:
    output = f"/builds/{recipe.stem}"
    command = ["deploy", str(recipe), "--output", output, "--container", "--dry-run", *words]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 0, said.output
    return said.stdout, said.stderr


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda file: file.stem)
def test_a_recipe_that_is_not_built_shows_the_golden_commands_and_compose_file(
    recipe: Path, tmp_path: Path
) -> None:
    shown, said = preview(recipe)
    check(GOLDEN / f"{recipe.stem}.txt", shown)
    assert f"not built yet: trtspec build {recipe} --output /builds/{recipe.stem} --container\n" in said
    pasted(shown, tmp_path)

    shown, _ = preview(recipe, "--format", "compose")
    check(GOLDEN / f"{recipe.stem}.yaml", shown.replace(f"trtspec:{__version__}-", "trtspec:VERSION-"))
    file = yaml11.load(shown)
    Draft7Validator(json.loads(gzip.decompress(SCHEMA.read_bytes()))).validate(file)
    server = file["services"]["server"]
    assert server["image"].rpartition("@")[0] in {each.image for each in RELEASES.values()}
    # Compose puts variables in place of each `$` that is not doubled.
    assert "--http-header-forward-pattern=(?i)^x-request-id$$" in server["command"]


def pasted(shown: str, folder: Path) -> None:
    """Holds what a shell runs: the secrets are the variables' values, and it changes nothing else."""
    for name in ("docker", "trtspec", "openssl"):
        (folder / name).write_text(SAYS)
        (folder / name).chmod(0o755)
    environment = {"PATH": str(folder), "HOME": str(folder)}
    said = subprocess.run(
        ["/bin/bash", "-eu"], input=shown, env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == 0, said.stderr
    pull, tag, run, serve = map(json.loads, said.stdout.splitlines())
    assert (run.pop(), serve.pop()) == ("s3cret", "s3cret")
    assert [pull[:2], tag[:2]] == [["docker", "pull"], ["docker", "tag"]]
    assert pull[2] == tag[2]
    assert run[:3] == ["docker", "run", "--detach"]
    assert {tag[3], "trtspec.deployment.key=s3cret", "TRTSPEC_NAMING"} <= set(run)
    assert "--http-header-forward-pattern=(?i)^x-request-id$" in run
    assert (serve[:2], serve[serve.index("--port") + 1]) == (["trtspec", "serve"], "9000")
