"""Refuses options that only engines have, for a recipe that another engine's server serves."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.backends.table import load, runner_of
from trtspec.base.errors import RecipeError
from trtspec.pipeline.plan.resolved import asked_backend

if TYPE_CHECKING:
    from trtspec.recipe.loader import LoadedRecipe


def require_engines(recipe: Path, lacking: str, backend: str | None = None) -> LoadedRecipe:
    """Returns the recipe; raises RecipeError if no engine is built for it.

    `lacking` is what there is not then, and `backend` what `--backend` says.
    """
    loaded = load(recipe, asked_backend({"engine.backend": backend}, os.environ))
    if not runner_of(loaded.recipe).builds_engines:
        problem = f"{loaded.recipe.backend} loads the models itself, so there is {lacking}"
        error = loaded.problem("engine.backend", problem, "trtspec build and trtspec deploy are all it needs")
        raise RecipeError(recipe, [error])
    return loaded


def require_coordinator(recipe: Path) -> LoadedRecipe:
    """Returns the recipe; raises RecipeError if the coordinator cannot draft for a share of its requests."""
    lacking = "no coordinator of trtspec's, which drafts for a share of the requests"
    loaded = require_engines(recipe, lacking)
    if runner_of(loaded.recipe).has_engine_draft(loaded.recipe):
        drafts = "an engine with its draft inside drafts for all requests"
        problem = f"{drafts}, and no roll-out can switch that off for some of them"
        raise RecipeError(recipe, [loaded.problem("speculation.method", problem, "write another method")])
    return loaded
