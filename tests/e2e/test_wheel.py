"""A wheel in a new virtual environment, outside of the clone: what `docs/how-to/install.md` says of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from subprocess import CompletedProcess

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.sweep
Installed = Callable[..., CompletedProcess[str]]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Runs `trtspec` of a wheel in an empty folder, without anything of this environment."""
    home = tmp_path_factory.mktemp("wheel")
    python = home / "venv/bin/python"
    environment = {**os.environ, "PATH": os.pathsep.join([str(python.parent), "/usr/bin", "/bin"])}
    environment.pop("PYTHONPATH", None)
    (home / "empty").mkdir()

    def call(*words: object) -> None:
        said = subprocess.run(list(map(str, words)), cwd=ROOT, capture_output=True, text=True)
        assert said.returncode == 0, said.stderr[-3000:]

    def run(*words: str) -> CompletedProcess[str]:
        command = [str(python.with_name("trtspec")), *words]
        return subprocess.run(
            command, cwd=home / "empty", env=environment, capture_output=True, text=True, timeout=600
        )

    call(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", home / "dist", ROOT)
    [wheel] = (home / "dist").glob("trtspec-*.whl")
    call(sys.executable, "-m", "venv", home / "venv")
    extras = f"{wheel}[measure,torch,triton]"
    call(python, "-m", "pip", "install", "--constraint", ROOT / "constraints.txt", extras)
    return run


def test_the_demo(installed: Installed) -> None:
    said = installed("demo")

    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("def fib(n):")
    assert "the target alone says the same text" in said.stderr


def test_a_shipped_recipe_is_copied_and_planned(installed: Installed) -> None:
    assert installed("init", "--recipe", "llama-3.1-8b-h100", "r.yaml").returncode == 0
    said = installed("plan", "r.yaml")

    assert said.returncode == 0, said.stderr
    assert said.stdout.startswith("llama-3.1-8b-h100 fits: ")


def test_the_self_test_finds_no_difference(installed: Installed) -> None:
    said = installed("selftest")

    assert said.returncode == 0, said.stdout
    assert " 0 differ, " in said.stdout
