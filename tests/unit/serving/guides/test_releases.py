"""Guides on the xgrammar of each of NVIDIA's images, as it is on PyPI, and on the one that is installed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[4]
# Those of TensorRT-LLM 1.0, of 1.1 and 1.2, and what is installed.
RELEASES = [pytest.param("0.1.21", marks=pytest.mark.sweep), "0.1.25", ""]


@pytest.mark.parametrize("version", RELEASES, ids=lambda version: version or "installed")
def test_every_kind_of_guide_is_followed(version: str, pytestconfig: pytest.Config) -> None:
    """In a process of its own, since a process has one xgrammar."""
    folders = [str(_wheel(version, pytestconfig))] if version else []
    done = subprocess.run(
        [sys.executable, "-m", "tests.fakes.guides_followed"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([*folders, str(ROOT)])},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    used, *followed, tag, triggered = done.stdout.splitlines()
    assert not version or used.startswith(folders[0])
    assert followed == ["json", "json_schema", "regex", "ebnf_grammar"]
    if version == "0.1.21":
        form = 'a tag here is {"structures": [{"begin", "schema", "end"}], "triggers": [...]}'
        assert (tag, triggered) == (form, "triggered")
    else:
        assert tag == "structural_tag"
        assert triggered.endswith("must have a format field")


def _wheel(version: str, config: pytest.Config) -> Path:
    """Returns a folder with this xgrammar, which pip installs there once; skips without a package index."""
    assert config.cache is not None
    cached = config.cache.mkdir("xgrammar")
    folder = cached / f"{version}-{sys.version_info.major}.{sys.version_info.minor}"
    if not folder.exists():
        new = tempfile.mkdtemp(dir=cached)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", new]
        done = subprocess.run([*install, f"xgrammar=={version}"], capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"xgrammar {version} cannot be installed: {done.stderr.strip().splitlines()[-1]}")
        Path(new).rename(folder)
    return folder
