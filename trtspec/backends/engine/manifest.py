"""The record beside a build: what it was made of, with what, and how to check it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Manifest:
    """The record of a build, as plain data without secrets or paths of the machine.

    `recipe` is the digest of the recipe with its defaults; `values` is what the plan made of it. `models`
    has, for target and draft, the model, its revision and the SHA-256 of its files; `outputs` the SHA-256 of
    each file that was made, by its path in the build directory; `calibration` what the FP8 scales of each
    model were found with, and `quality` what FP8 costs it; `layers` is what was found of layers of the target
    that are its draft. `tools` are the packages that the engines depend
    on, and `packages` all that were installed. `image` is the container image that built the engines, by its
    registry's digest; None if none did. `pulled` has what made the engines that came from a store, and the
    digest of the entry there. `times` has the seconds of each step; only they differ between equal builds.
    """

    name: str
    recipe: str
    backend: str
    values: Mapping[str, Any]
    models: Mapping[str, Mapping[str, Any]]
    tools: Mapping[str, str]
    gpu: Mapping[str, Any] | None
    commands: Mapping[str, list[str]]
    calibration: Mapping[str, Any] = field(default_factory=dict)
    quality: Mapping[str, Any] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)
    pulled: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)
    image: str | None = None
    outputs: Mapping[str, str] = field(default_factory=dict)
    times: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Returns the text of `manifest.json`."""
        return json.dumps({"schema": SCHEMA, **asdict(self)}, indent=2, ensure_ascii=False) + "\n"


_MANIFEST = TypeAdapter(Manifest)


def read_manifest(file: Path) -> Manifest | None:
    """Returns a manifest; None if it is missing, damaged or of another schema."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        return _MANIFEST.validate_python(content) if content["schema"] == SCHEMA else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def recipe_of(file: Path) -> str | None:
    """Returns the digest of the recipe that a manifest names; None where there is no such manifest."""
    found = read_manifest(file)
    return found.recipe if found else None


def backend_of(file: Path) -> str | None:
    """Returns the backend that a manifest names; None where there is no such manifest."""
    found = read_manifest(file)
    return found.backend if found else None
