from __future__ import annotations

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from trtspec.pipeline.machine.host import installed, installed_beside


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


# A Python of its own, for packages like setuptools add what they carry with them to this one's path.
TELL = """
import json
from importlib.metadata import distributions, version
print(json.dumps({name: version(name) for name in {item.metadata["Name"] for item in distributions()}}))
"""


def test_every_version_is_the_one_that_pythons_own_library_tells(tmp_path: Path) -> None:
    told = json.loads(subprocess.check_output([sys.executable, "-c", TELL]))
    assert installed(told) == told
    assert installed_beside(script(tmp_path, f"#!{sys.executable}"), told) == told


def test_a_package_that_runs_from_its_sources_has_the_version_of_their_metadata(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", symlinks=True)
    (packages,) = (tmp_path / "venv").glob("lib/*/site-packages")
    (packages / "sources.pth").write_text(f"{tmp_path}\n")
    info = tmp_path / "tensorrt_llm.egg-info"
    info.mkdir()
    (info / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: tensorrt-llm\nVersion: 1.2.0\n")
    file = script(tmp_path, f"#!{tmp_path}/venv/bin/python")
    assert installed_beside(file, ("tensorrt_llm",)) == {"tensorrt_llm": "1.2.0"}


@pytest.mark.parametrize(
    "first_line",
    ["#!/bin/sh", "#!/usr/bin/env python3", "#!/nowhere/python3", "#!/bin/python -c 'x'", "\x7fELF"],
)
def test_other_commands_say_nothing(tmp_path: Path, first_line: str) -> None:
    assert installed_beside(script(tmp_path, first_line), ("pytest",)) == {}
    assert installed_beside(tmp_path / "nothing", ("pytest",)) == {}
