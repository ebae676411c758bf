"""`trtspec schema`: the JSON Schema of the recipe, for editors."""

from __future__ import annotations

from trtspec.backends.table import all_releases
from trtspec.cli.terminal.output import out
from trtspec.recipe.schema import json_schema

EXAMPLES = ("trtspec schema > recipe.schema.json",)


def schema() -> None:
    """Print the JSON Schema of the recipe, for editors."""
    out.json(json_schema(all_releases()))
