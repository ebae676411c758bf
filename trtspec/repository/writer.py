"""Writes a Triton model repository that needs nothing of trtspec installed where it is served."""

from __future__ import annotations

import shutil
from importlib.resources import files
from pathlib import Path

import trtspec.serving
from trtspec.repository.config import config_text
from trtspec.repository.spec import RepositorySpec

VERSION = "1"


def write_repository(destination: Path, spec: RepositorySpec) -> None:
    """Writes `<destination>/<model_name>/{config.pbtxt,1/model.py,1/trtspec/serving/…}`.

    `destination` must not exist, or be empty; it is not written atomically, which is the caller's to arrange.
    The same spec gives the same bytes.
    """
    model = destination / spec.model_name
    version = model / VERSION
    version.mkdir(parents=True)
    (model / "config.pbtxt").write_text(config_text(spec), encoding="utf-8")
    (version / "model.py").write_bytes((files("trtspec.repository") / "triton_model.py").read_bytes())
    _copy_serving(version / "trtspec")


def _copy_serving(package: Path) -> None:
    """The copy is a regular package, which Python prefers to an installed trtspec's parts."""
    source = Path(trtspec.serving.__path__[0])
    shutil.copytree(source, package / "serving", ignore=shutil.ignore_patterns("__pycache__", "*.pyc"))
    (package / "__init__.py").touch()
