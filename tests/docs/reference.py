"""Writes the generated pages of the documentation: `make docs-reference`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.docs import commands, methods, proven, recipe_keys
from trtspec.backends.table import all_releases
from trtspec.recipe.schema import json_schema

FOLDER = Path(__file__).parents[2] / "docs" / "reference"
NOTE = "<!-- Written by `make docs-reference`. Edit the program's own texts, not this page. -->\n\n"
PAGES: dict[str, Callable[[], str]] = {
    "commands.md": commands.page,
    "methods.md": methods.page,
    "proven.md": proven.page,
    "recipe.md": lambda: recipe_keys.page(json_schema(all_releases())),
}
"""Each page by the name of its file."""


def text_of(name: str) -> str:
    """Returns a page as its file should have it."""
    return NOTE + PAGES[name]().rstrip() + "\n"


if __name__ == "__main__":
    for name in PAGES:
        (FOLDER / name).write_text(text_of(name), encoding="utf-8")
