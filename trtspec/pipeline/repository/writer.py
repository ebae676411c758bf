"""Writes a Triton model repository, which can be served where trtspec is not installed."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

import trtspec.serving
from trtspec.backends.backend import PYTHON
from trtspec.backends.table import backend_named
from trtspec.base.tree import copy_tree
from trtspec.pipeline.repository.config import config_text
from trtspec.pipeline.repository.engine_config import engine_config_text
from trtspec.pipeline.repository.spec import RepositorySpec

VERSION = "1"


def write_repository(destination: Path, spec: RepositorySpec) -> None:
    """Writes `<destination>/<model>/{config.pbtxt,1/}` for each model.

    Models of the Python backend have `model.py` and `trtspec/serving/…` in `1/`. NVIDIA's C++ backend needs
    only the folder, which gets a file, since some stores lose empty folders. `destination` must not exist or
    must be empty; a model that is there already raises FileExistsError. The repository is not written
    atomically; a caller that needs that must arrange it. The same spec gives the same bytes.
    """
    version = _write_config(destination / spec.model_name, config_text(spec))
    _write_code(version, "triton_model.py")
    for engine in spec.engines:
        version = _write_config(destination / engine.name, engine_config_text(engine))
        if backend_named(engine.backend).triton_backend == PYTHON:
            _write_code(version, "triton_engine_model.py")
        else:
            (version / ".keep").touch()


def _write_config(model: Path, text: str) -> Path:
    version = model / VERSION
    version.mkdir(parents=True)
    (model / "config.pbtxt").write_text(text, encoding="utf-8")
    return version


def _write_code(version: Path, edge: str) -> None:
    """Writes `model.py`, and a copy of `trtspec.serving` beside it.

    The copy is a regular package, which Python prefers to the parts of an installed trtspec.
    """
    (version / "model.py").write_bytes((files("trtspec.pipeline.repository") / edge).read_bytes())
    source, package = Path(trtspec.serving.__path__[0]), version / "trtspec"
    copy_tree(source, package / "serving", "__pycache__", "*.pyc")
    (package / "__init__.py").touch()
