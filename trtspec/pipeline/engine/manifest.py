"""Reads and writes the record beside a build: its sources, its tools, and digests to check it by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from trtspec.base.errors import EngineError
from trtspec.models.source import read_file

SCHEMA = 1
_SMALL = (
    "tokenizer/tokenizer.json",
    "draft/tokenizer/tokenizer.json",
    "target/engine/config.json",
    "draft/engine/config.json",
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a build, as plain data without secrets or paths of the machine."""

    name: str
    recipe: str
    """The digest of the recipe with its defaults."""
    backend: str
    values: Mapping[str, Any]
    """The values that the plan made of the recipe."""
    models: Mapping[str, Mapping[str, Any]]
    """For target and draft: the model, its revision and the SHA-256 of its files."""
    tools: Mapping[str, str]
    """The versions of the packages that the engines depend on."""
    gpu: Mapping[str, Any] | None
    commands: Mapping[str, list[str]]
    calibration: Mapping[str, Any] = field(default_factory=dict)
    """For each model: the origin of its FP8 scales."""
    quality: Mapping[str, Any] = field(default_factory=dict)
    """For each model: the loss of quality that FP8 costs it."""
    layers: Mapping[str, Any] = field(default_factory=dict)
    """The findings about layers of the target that are its draft."""
    pulled: Mapping[str, Any] = field(default_factory=dict)
    """For engines that came from a store: what made them, and the digest of their entry there."""
    packages: Mapping[str, str] = field(default_factory=dict)
    """The versions of all packages that were installed."""
    image: str | None = None
    """The container image that built the engines, by its registry's digest, or by its name where no registry
    knows it. None if none did.
    """
    outputs: Mapping[str, str] = field(default_factory=dict)
    """The SHA-256 of each file that was made, by its path in the build directory."""
    times: Mapping[str, float] = field(default_factory=dict)
    """The seconds of each step. Only they differ between equal builds."""

    def to_json(self) -> str:
        """Returns the text of `manifest.json`."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(file: Path) -> Manifest | None:
    """Returns a manifest; None if it is missing, damaged or of another schema.

    Raises ModelError for what is no file.
    """
    try:
        content = json.loads(read_file(file))
        return _MANIFEST.validate_python(content) if content["schema"] == SCHEMA else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def check_unchanged(build: Path) -> None:
    """Raises EngineError for a tokenizer or an engine's config that is not the one of the build's manifest.

    Another tokenizer of the same size would load and give wrong text. Engines themselves are too large to be
    read twice, and TensorRT refuses one that is damaged. Without a manifest nothing is checked. Of a manifest
    only `outputs` is read, so that damage elsewhere hides no change.
    """
    try:
        outputs = json.loads((build / "manifest.json").read_text(encoding="utf-8"))["outputs"]
        built = {name: outputs[name] for name in _SMALL if name in outputs}
    except (OSError, ValueError, LookupError, TypeError):
        return
    for name, digest in built.items():
        file = build / name
        if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() != digest:
            problem = "has changed since the build: its SHA-256 differs from manifest.json"
            raise EngineError(
                file,
                problem,
                "build it again: trtspec build recipe.yaml; make changes in the model, not in the build",
            )
