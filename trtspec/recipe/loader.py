"""From a recipe file to a `LoadedRecipe`, or to one error that holds everything wrong with the file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import Problem
from trtspec.recipe.schema import Model, Recipe


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A valid recipe and where it came from; `lines` has the 1-based line of each dotted key of the file."""

    recipe: Recipe
    path: Path
    lines: Mapping[str, int]

    def problem(self, key: str, problem: str, repair: str | None = None) -> Problem:
        """A problem found later at this key, with the line of the key or of the nearest section that the file has."""
        nearest = key
        while nearest and nearest not in self.lines:
            nearest = nearest.rpartition(".")[0]
        return Problem(self.lines.get(nearest, 0), key, problem, repair)

    def model_location(self, model: Model) -> Path | str:
        """The model's folder, which may not exist, or its Hub id.

        A folder is what exists relative to the recipe's folder, or what starts with `./`, `../`, `/` or `~`.
        """
        return model_location(model.model, self.path.parent)


def model_location(value: str, folder: Path) -> Path | str:
    """See `LoadedRecipe.model_location`; `folder` is the recipe's."""
    path = folder / Path(value).expanduser()
    if value.startswith((".", "/", "~")) or path.is_dir():
        return path
    return value


def load(path: Path) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError."""
    import yaml

    recipe = Recipe.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    return LoadedRecipe(recipe, path, {})
