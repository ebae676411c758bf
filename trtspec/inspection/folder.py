"""Finds out what a folder is. Of its weights only headers and scales are read, and no code of it is run."""

from __future__ import annotations

from pathlib import Path

from trtspec.errors import ModelError
from trtspec.inspection.checkpoint import inspect_checkpoint
from trtspec.inspection.engine import inspect_engine
from trtspec.inspection.hugging_face import inspect_model
from trtspec.inspection.report import Report
from trtspec.models.hf_config import read_json
from trtspec.models.hub import cached_folder


def inspect(place: str) -> Report:
    """The report of a folder, or of a Hub model that this machine has; raises ModelError if it is neither."""
    folder = _find(place)
    config = read_json(folder / "config.json")
    if "pretrained_config" in config:
        return inspect_engine(folder, config)
    if "architecture" in config and "mapping" in config:
        return inspect_checkpoint(folder, config)
    return inspect_model(folder, config)


def _find(place: str) -> Path:
    folder = Path(place)
    if not folder.is_dir():
        cached = None if folder.exists() else cached_folder(place)
        if cached is None:
            problem = "is neither a folder nor a Hub model that this machine has"
            raise ModelError(place, problem, f"for a model of the Hub, first: hf download {place}")
        return cached
    if not (folder / "config.json").is_file():
        below = sorted(str(config.parent) for config in folder.glob("*/*/config.json"))
        repair = f"name one of {', '.join(below)}" if below else "name the folder of a model or of an engine"
        raise ModelError(folder, "has no config.json", repair)
    return folder
