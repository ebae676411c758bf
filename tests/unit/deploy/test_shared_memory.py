"""Regions of servers that are gone."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.deploy import shared_memory
from trtspec.deploy.shared_memory import new_prefix, remove_abandoned, remove_regions


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(shared_memory, "_FOLDER", tmp_path)
    return tmp_path


def test_only_those_of_dead_processes_are_removed(folder: Path) -> None:
    code = "from trtspec.deploy.shared_memory import new_prefix; print(new_prefix())"
    theirs = subprocess.check_output([sys.executable, "-c", code], text=True).strip()
    namespace = theirs.split("_")[1].partition("-")[0]
    other = theirs.replace(namespace, f"{namespace}1", 1)
    mine = new_prefix()
    names = (f"{theirs}region", f"{mine}region", f"{other}region", "trtspec_region", "sem.other")
    for name in names:
        (folder / name).touch()

    remove_abandoned()

    assert {file.name for file in folder.iterdir()} == set(names[1:])
    remove_regions(mine)
    assert {file.name for file in folder.iterdir()} == set(names[2:])
