"""Regions of servers that are gone."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trtspec.deployment.triton import install
from trtspec.deployment.triton.install import Regions, remove_abandoned

_SERVER = """
import pathlib, sys
from trtspec.deployment.triton import install
install._FOLDER = pathlib.Path(sys.argv[1])
print(install.Regions().prefix, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(install, "_FOLDER", tmp_path)
    return tmp_path


@pytest.fixture
def other(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that has regions, and how their names begin."""
    line = [sys.executable, "-c", _SERVER, str(folder)]
    process = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    yield process, process.stdout.readline().strip()
    process.kill()
    process.communicate()


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_only_those_of_dead_processes_are_removed(
    folder: Path, other: tuple[subprocess.Popen[str], str]
) -> None:
    process, theirs = other
    mine = Regions()
    for name in (f"{theirs}region", f"{mine.prefix}region", "trtspec_region", "trtspec_lock", "sem.other"):
        (folder / name).touch()
    before = names(folder)

    remove_abandoned()
    assert names(folder) == before

    process.kill()
    process.wait()
    remove_abandoned()
    assert names(folder) == before - {f"{theirs}region", f"{theirs}lock"}


def test_a_server_that_ends_leaves_nothing(folder: Path) -> None:
    regions = Regions()
    (folder / f"{regions.prefix}region").touch()
    regions.remove()
    assert names(folder) == {f"{regions.prefix}lock"}
    regions.close()
    assert names(folder) == set()
