"""The recipes that trtspec ships, and the tiny pair: a link to the repository's `recipes/`."""

from __future__ import annotations

from pathlib import Path

from trtspec.base.errors import UnavailableError

_FOLDER = Path(__file__).with_name("recipes")
TINY = _FOLDER / "tiny"
"""The folder of the tiny pair: `recipe.yaml`, `target` and `draft`."""


def shipped(name: str) -> Path:
    """Returns the file of a recipe by its name; raises `UnavailableError` that lists them."""
    known = {file.stem: file for file in sorted(_FOLDER.glob("*.yaml"))}
    if name not in known:
        raise UnavailableError(name, "trtspec ships no such recipe", f"it has {', '.join(known)}")
    return known[name]
