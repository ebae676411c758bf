from __future__ import annotations

import sys
from pathlib import Path

import pytest

from trtspec.pipeline.machine.installed import installed, installed_beside


def script(tmp_path: Path, first_line: str) -> Path:
    file = tmp_path / "trtllm-build"
    file.write_text(f"{first_line}\nraise SystemExit('it must not be run')\n")
    return file


def test_installed_returns_the_versions_of_packages_that_are_here() -> None:
    found = installed(("pytest", "no-such-package"))
    assert found == {"pytest": pytest.__version__}


def test_installed_beside_returns_versions_from_the_python_of_a_script(tmp_path: Path) -> None:
    file = script(tmp_path, f"#!{sys.executable}")
    assert installed_beside(file, ("pytest", "no-such-package")) == {"pytest": pytest.__version__}


@pytest.mark.parametrize(
    "first_line",
    ["#!/bin/sh", "#!/usr/bin/env python3", "#!/nowhere/python3", "#!/bin/python -c 'x'", "\x7fELF"],
)
def test_other_commands_say_nothing(tmp_path: Path, first_line: str) -> None:
    assert installed_beside(script(tmp_path, first_line), ("pytest",)) == {}
    assert installed_beside(tmp_path / "nothing", ("pytest",)) == {}
