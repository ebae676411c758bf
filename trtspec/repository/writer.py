"""Writes a Triton model repository that needs nothing of trtspec installed where it is served."""

from __future__ import annotations

from pathlib import Path

from trtspec.repository.spec import RepositorySpec


def write_repository(destination: Path, spec: RepositorySpec) -> None:
    """Writes `<destination>/<model_name>/{config.pbtxt,1/…}`; `destination` must not exist, or be empty."""
    raise NotImplementedError
