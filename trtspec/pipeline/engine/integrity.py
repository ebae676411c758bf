"""Checks by small files that what is to be served is what was built."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from trtspec.base.errors import EngineError

_SMALL = (
    "tokenizer/tokenizer.json",
    "draft/tokenizer/tokenizer.json",
    "target/engine/config.json",
    "draft/engine/config.json",
)


def check_unchanged(build: Path) -> None:
    """Raises EngineError for a tokenizer or an engine's config that is not the one of the build's manifest.

    Another tokenizer of the same size would load and give wrong text. Engines themselves are too large to be
    read twice, and TensorRT refuses one that is damaged. Without a manifest nothing is checked.
    """
    try:
        outputs = json.loads((build / "manifest.json").read_text(encoding="utf-8"))["outputs"]
        built = {name: outputs[name] for name in _SMALL if name in outputs}
    except (OSError, ValueError, KeyError, TypeError):
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
