"""Which Triton of this machine is run: that of the wheel is made ready for this Python."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.base.errors import UnavailableError
from trtspec.deployment.triton import install as rooms
from trtspec.deployment.triton.install import find_wheel


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_backend_has_the_stub_of_this_python(cache: Path) -> None:
    wheel = find_wheel()

    assert wheel.backends is not None
    python = wheel.backends / "python"
    assert wheel.backends.is_relative_to(cache)
    assert {file.name for file in python.iterdir()} == {
        "libtriton_python.so",
        "triton_python_backend_stub",
        "triton_python_backend_utils.py",
    }
    assert os.access(python / "triton_python_backend_stub", os.X_OK)


def test_the_libraries_of_server_and_stub_are_found(cache: Path) -> None:
    wheel = find_wheel()

    assert wheel.backends is not None
    for executable in (wheel.server, wheel.backends / "python" / "triton_python_backend_stub"):
        said = subprocess.run(
            ["ldd", executable], env=wheel.environment(), capture_output=True, text=True, check=True
        ).stdout
        assert "not found" not in said
        assert "=>" in said


def test_numpy_2_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "version", lambda name: "2.3.5")

    with pytest.raises(UnavailableError, match=r"needs numpy 1, but numpy 2\.3\.5 is installed") as caught:
        find_wheel()
    assert caught.value.repair == "pip install 'numpy<2'"


def test_python_3_13_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 13, 0))
    monkeypatch.setattr(rooms, "_python_version", lambda: "3.13")

    with pytest.raises(
        UnavailableError, match=r"needs numpy 1, which does not exist for Python 3\.13"
    ) as caught:
        find_wheel()
    assert caught.value.repair == "use Python 3.10 to 3.12"


def test_the_backend_is_made_once(cache: Path) -> None:
    first = find_wheel().backends
    assert first is not None
    mark = (first / "python" / "libtriton_python.so").stat().st_ino

    assert find_wheel().backends == first
    assert (first / "python" / "libtriton_python.so").stat().st_ino == mark
    assert [folder.name for folder in first.parent.iterdir()] == [first.name]


def test_this_environments_python_comes_first(cache: Path) -> None:
    environment = find_wheel().environment()

    assert environment["PATH"].split(":")[0] == os.path.join(sys.prefix, "bin")
    assert os.environ["PATH"] in environment["PATH"]


def test_a_missing_wheel_names_the_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "find_spec", lambda name: None)

    with pytest.raises(UnavailableError, match="nvidia-pytriton: not installed") as caught:
        find_wheel()
    assert "pip install '.[triton]'" in str(caught.value.repair)


def test_a_python_that_the_wheel_does_not_know_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_python_version", lambda: "3.99")

    with pytest.raises(UnavailableError, match=r"no Python backend for Python 3\.99, only for .*3\.11"):
        find_wheel()


def test_a_cache_that_cannot_be_written_is_told_with_its_repair(cache: Path) -> None:
    cache.write_text("a file")

    with pytest.raises(UnavailableError, match="cannot store Triton's backends: Not a directory") as caught:
        find_wheel()
    assert caught.value.subject == str(cache / "triton-backends")
    assert "TRTSPEC_CACHE" in str(caught.value.repair)
