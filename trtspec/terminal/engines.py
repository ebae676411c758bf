"""What only engines have, refused for a recipe that a server of others serves."""

from __future__ import annotations

import os
from pathlib import Path

from trtspec.errors import RecipeError


def require_engines(recipe: Path, lacking: str, backend: str | None = None) -> None:
    """Raises RecipeError if no engine is built for the recipe; `lacking` is what there is not then.

    `backend` is what `--backend` says.
    """
    from trtspec.plan.choices import backend_of
    from trtspec.recipe.loader import load
    from trtspec.recipe.support import SERVERS

    loaded = load(recipe)
    found = backend_of(loaded, {"engine.backend": backend}, os.environ)
    if found in SERVERS:
        problem = f"{found} loads the models itself, so there is {lacking}"
        error = loaded.problem("engine.backend", problem, "trtspec build and trtspec deploy are all it needs")
        raise RecipeError(recipe, [error])


def require_coordinator(recipe: Path) -> None:
    """Raises RecipeError if trtspec's coordinator cannot draft for a share of the recipe's requests."""
    from trtspec.recipe.loader import load

    require_engines(recipe, "no coordinator of trtspec's, which drafts for a share of the requests")
    loaded = load(recipe)
    if loaded.recipe.drafts_inside:
        problem = "an engine with Medusa's heads drafts for all requests, and nobody can take that from some"
        raise RecipeError(recipe, [loaded.problem("speculation.method", problem, "write another method")])
