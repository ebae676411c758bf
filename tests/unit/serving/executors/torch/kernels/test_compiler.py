"""Where compiled kernels are kept, and that they are taken from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import trtspec
from trtspec.serving.executors.torch.kernels import compiled

SCRIPT = """
import numpy
from trtspec.serving.executors.torch.kernels.compiled import gate
print(gate(numpy.float32).cache_hits)
"""


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of a user who has run nothing yet."""
    monkeypatch.delenv("TRTSPEC_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "_cache_file", compiled._cache_file.__wrapped__)
    return tmp_path / "cache"


def cache_hits(folder: Path) -> int:
    """Of a process that has its package from a folder."""
    environment = os.environ | {"PYTHONPATH": str(folder)}
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, cwd=folder, capture_output=True, check=True
    )
    return int(run.stdout)


def copied(folder: Path) -> Path:
    """A copy of the package, as a build has one, without what Python compiled of it."""
    source = Path(trtspec.__file__).parent
    shutil.copytree(source, folder / "trtspec", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.sweep
def test_copies_share_what_is_compiled_until_a_file_changes(tmp_path: Path) -> None:
    first, second = copied(tmp_path / "first"), copied(tmp_path / "second")
    assert [cache_hits(folder) for folder in (first, second)] == [0, 1]
    source = second / "trtspec/serving/executors/torch/kernels/compiled.py"
    source.write_text(source.read_text() + "\n# changed\n")
    assert [cache_hits(folder) for folder in (second, first)] == [0, 1]


@pytest.mark.parametrize("is_named", [False, True])
def test_the_folder_of_compiled_kernels_is_readable_by_its_user_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch, is_named: bool
) -> None:
    if is_named:
        monkeypatch.setenv("TRTSPEC_CACHE", str(home / "own"))
    compiled.gate.__wrapped__(np.float32)
    (folder,) = (home / ("own" if is_named else "trtspec") / "kernels").iterdir()
    assert folder.stat().st_mode & 0o777 == 0o700
    assert list(folder.rglob("*.nbi"))


def test_nothing_is_taken_from_where_others_write(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    compiled.gate.__wrapped__(np.float32)
    (folder,) = (home / "trtspec/kernels").iterdir()
    folder.chmod(0o777)
    assert compiled.gate.__wrapped__(np.float32).cache_hits == 0
    assert f"others may write to {folder}" in caplog.text


def test_a_home_that_is_a_file(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    home.write_text("")
    assert compiled.gate.__wrapped__(np.float32).address
    assert "compiled at each start" in caplog.text


def test_a_disk_that_is_full(
    home: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def no_space(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", no_space)
    assert compiled.gate.__wrapped__(np.float32).address
    assert "No space left" in caplog.text
