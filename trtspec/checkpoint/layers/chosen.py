"""The layers that were chosen for a draft, and the small file that keeps them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.layers import of_layers
from trtspec.models.source import Source, read_source

FORMAT = 1
FILE = "layers.json"


@dataclass(frozen=True, slots=True)
class ChosenLayers:
    """Some of a target's layers, and how often a draft of them foresaw what the target said."""

    layers: tuple[int, ...]
    of: int
    """The number of layers that the target has."""
    agreement: float
    """The share of the answers' tokens that the draft would have proposed after the same prefix."""
    spread: float
    """The same share for as many layers that are spread evenly."""
    tokens: int
    """The number of tokens in the target's answers."""
    tried: int
    """The number of sets that were tried."""
    curve: Mapping[int, float]
    """The agreement of the sets tried on the way, by their number of layers."""
    provenance: Mapping[str, Any]
    """The prompts and options of the search."""


def write_layers(file: Path, chosen: ChosenLayers) -> None:
    content = json.dumps({"format": FORMAT, **asdict(chosen)}, indent=1, allow_nan=False)
    file.write_text(content + "\n", encoding="utf-8")


def read_layers(file: Path) -> ChosenLayers:
    """Reads a choice; raises ModelError for another file."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content.pop("format") != FORMAT:
            raise ValueError("written by another version of trtspec")
        curve = {int(count): share for count, share in content["curve"].items()}
        return ChosenLayers(**{**content, "layers": tuple(content["layers"]), "curve": curve})
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ModelError(file, f"is no choice of layers: {error}", "remove it, and build again") from error


def with_layers(source: Source, file: Path | None) -> Source:
    """Returns the model of the layers in `file`, where there is one, in place of those that were planned."""
    return of_layers(read_source(source.folder), read_layers(file).layers) if file else source
