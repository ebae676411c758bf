"""Reads a head of any of the published formats, without the data of its weights.

A format is a module with `recognises`, `read` and `tensors`, and a line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from trtspec.base.errors import ModelError
from trtspec.models.heads import dflash, eagle, medusa, specforge, speculators
from trtspec.models.heads.head import Form, HeadDescription
from trtspec.models.hf_config import HfConfig, read_hf_config
from trtspec.models.tensors import Tensor


class _Format(Protocol):
    def recognises(self, folder: Path, config: Mapping[str, Any]) -> bool:
        """Says whether a folder with this `config.json` is of the format, if it is a head at all."""

    def read(self, folder: Path, config: HfConfig) -> HeadDescription:
        """Reads the head; raises ModelError or TensorError."""

    def tensors(self, folder: Path) -> dict[str, Tensor]:
        """Returns the tensors of the head under Speculators' names."""


FORMATS: Mapping[Form, _Format] = {
    "speculators": speculators,
    "specforge": specforge,
    "dflash": dflash,
    "medusa": medusa,
    "eagle": eagle,
}
"""In the order in which a folder is held against them."""


def is_head(folder: Path) -> bool:
    """Says whether a folder is one of a head, or of another draft in a head's format, whole or not."""
    try:
        return _format(folder, read_hf_config(folder / "config.json")) is not None
    except ModelError:
        return False


def read_head(folder: Path) -> HeadDescription:
    """Reads a head's folder; raises ModelError or TensorError for one that is none, or not whole."""
    if not folder.is_dir():
        raise ModelError(folder, "is not a folder", "give the head's folder or its Hugging Face Hub id")
    config = read_hf_config(folder / "config.json")
    if (found := _format(folder, config)) is None:
        problem = "is no head: neither of Speculators, of SpecForge, nor of the own repository of a method"
        repair = "name the folder of a head, of any of these methods, or write method: draft_model"
        raise ModelError(folder, problem, repair)
    return FORMATS[found].read(folder, config)


def head_tensors(head: HeadDescription) -> dict[str, Tensor]:
    """Returns where a head's tensors are, under Speculators' names; Medusa's keep their own.

    `embed_tokens.weight` and `lm_head.weight` are missing where the target's are used, `d2t` and `t2d` where
    the head has the target's vocabulary.
    """
    return FORMATS[head.form].tensors(head.folder)


def _format(folder: Path, config: HfConfig) -> Form | None:
    return next((form for form, at in FORMATS.items() if at.recognises(folder, config.content)), None)
