"""Whether a store has what a job would build, without the weights of its models; pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of
from trtspec.store.entry import Entry
from trtspec.store.platform import platform_of


def has_pair(entries: Iterable[Entry], loaded: LoadedRecipe, commits: Mapping[str, str]) -> bool:
    """Whether there is a pair of this recipe, for its GPU and release, from these commits of its models.

    `commits` has those of target and draft. A folder has none, and is built: the store tells then.
    """
    recipe = loaded.recipe
    platform = platform_of(recipe.hardware.gpu, release_of(recipe.engine.release))
    return any(
        entry.role == "pair"
        and entry.platform == platform
        and entry.manifest["recipe"] == recipe.digest
        and {role: model["revision"] for role, model in entry.manifest["models"].items()} == commits
        for entry in entries
    )
