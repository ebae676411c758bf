"""Reads a head of any of the published formats, without the data of its weights.

A format is a module with `recognises` and `read`, and its name in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trtspec.base.errors import ModelError
from trtspec.models.heads import dflash, eagle, medusa, specforge, speculators
from trtspec.models.heads.head import HeadDescription
from trtspec.models.hf_config import HfConfig, read_hf_config


class _Format(Protocol):
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        """Says whether a head's folder with this `config.json` has this format."""

    def read(self, folder: Path, config: HfConfig) -> HeadDescription:
        """Reads the head; raises ModelError or TensorError."""


FORMATS: Sequence[_Format] = (speculators, specforge, dflash, medusa, eagle)
"""The formats, in the order in which they are tried."""


def is_head(folder: Path) -> bool:
    """Says whether a folder has a head, or another draft in a head's format, complete or not."""
    try:
        return _format(folder, read_hf_config(folder / "config.json")) is not None
    except ModelError:
        return False


def read_head(folder: Path) -> HeadDescription:
    """Reads a head's folder; raises ModelError or TensorError if it has no head, or an incomplete one."""
    if not folder.is_dir():
        raise ModelError(folder, "is not a folder", "give the head's folder or its Hugging Face Hub id")
    config = read_hf_config(folder / "config.json")
    if (found := _format(folder, config)) is None:
        problem = "is no head in a known format: Speculators, SpecForge, or a method's own repository"
        repair = "name the folder of a head in one of these formats, or write method: draft_model"
        raise ModelError(folder, problem, repair)
    return found.read(folder, config)


def _format(folder: Path, config: HfConfig) -> _Format | None:
    return next((form for form in FORMATS if form.recognises(folder, config.content)), None)
