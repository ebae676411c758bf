"""Holds the report on a folder: facts, stored tensors, and findings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtspec.base.errors import TrtspecError
from trtspec.base.findings import Finding, Severity
from trtspec.models.source import Tensor

Kind = Literal["hugging_face", "head", "checkpoint", "engine", "build"]


@dataclass(frozen=True, slots=True)
class StoredTensors:
    """The number of tensors of one dtype, and their bytes."""

    tensors: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Report:
    """The report on one folder.

    A finding is an error if using the folder would fail or give wrong output.
    """

    folder: Path
    kind: Kind
    facts: Mapping[str, Any]
    """By the names that the folder's own config has for them; None for what it does not have."""
    stored: Mapping[str, StoredTensors]
    """By safetensors dtype, all ranks together."""
    files: tuple[Path, ...]
    """The config and the weights."""
    findings: tuple[Finding, ...]

    @property
    def names(self) -> dict[str, Path]:
        """The files by their paths in the folder."""
        return {file.relative_to(self.folder).as_posix(): file for file in self.files}

    @property
    def bytes(self) -> int:
        """The bytes of all files on the disk."""
        return sum(file.stat().st_size for file in self.files)


def finding(error: TrtspecError, folder: Path, severity: Severity) -> Finding:
    """An error as a finding, its path relative to the folder."""
    path = Path(error.subject)
    subject = str(path.relative_to(folder)) if path.is_relative_to(folder) else error.subject
    return Finding("" if subject == "." else subject, error.problem, error.repair, severity=severity)


def stored(tensors: Iterable[Tensor]) -> dict[str, StoredTensors]:
    """Returns the stored tensors by dtype, the one with most bytes first."""
    found: dict[str, StoredTensors] = {}
    for tensor in tensors:
        so_far = found.get(tensor.dtype, StoredTensors(0, 0))
        found[tensor.dtype] = StoredTensors(so_far.tensors + 1, so_far.bytes + tensor.end - tensor.start)
    return dict(sorted(found.items(), key=lambda item: -item[1].bytes))
