"""Reads a head of any of the published formats, without the data of its weights.

A format is a module with a `HeadFormat`, and its line in `FORMATS`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.base.errors import ModelError
from trtspec.models.heads.dflash import DFlashFormat
from trtspec.models.heads.eagle import EagleFormat
from trtspec.models.heads.eagle3 import SpecForgeFormat
from trtspec.models.heads.head import HeadDescription, HeadFormat
from trtspec.models.heads.medusa import MedusaFormat
from trtspec.models.heads.speculators import SpeculatorsFormat
from trtspec.models.source import HfConfig, Source, read_model_config, read_source, read_tensors

FORMATS: Sequence[HeadFormat] = (
    SpeculatorsFormat(),
    SpecForgeFormat(),
    DFlashFormat(),
    MedusaFormat(),
    EagleFormat(),
)
"""The formats, in the order in which they are tried."""

_LOAD = "torch.load({0!r}, weights_only=True)"


def is_head(folder: Path) -> bool:
    """Says whether a folder has a head, or another draft in a head's format, complete or not."""
    try:
        return _format(folder)[1] is not None
    except ModelError:
        return False


def read_model(folder: Path, *, whole: bool = False) -> Source:
    """Reads a folder that must have a model, as `read_source`; raises ModelError for a head too."""
    if is_head(folder):
        method = read_head(folder).method
        repair = f"name it as the draft, with speculation.method: {method}"
        raise ModelError(folder, f"is a head of method {method}, not a model", repair)
    return read_source(folder, whole=whole)


def read_head(folder: Path) -> HeadDescription:
    """Reads a head's folder; raises ModelError or TensorError if it has no head, or an incomplete one."""
    config, found = _format(folder)
    if found is None:
        problem = "is no head in a known format: Speculators, SpecForge, or a method's own repository"
        repair = "name the folder of a head in one of these formats, or write method: draft_model"
        raise ModelError(folder, problem, repair)
    found.refuse(config)
    repair = f"in a sandbox: safetensors.torch.save_file({_LOAD}, {found.weights!r})"
    tensors = read_tensors(folder, found.weights, repair)
    head = found.describe(config, {found.name_of(name): tensor for name, tensor in tensors.items()})
    head.check_tensors()
    return head


def _format(folder: Path) -> tuple[HfConfig, HeadFormat | None]:
    """Returns a folder's `config.json` and its format; raises ModelError for a file that cannot be read."""
    config = read_model_config(folder)
    return config, next((each for each in FORMATS if each.recognises(config)), None)
