"""Finds whether a store has what a job would build, without downloading the weights of its models."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from trtspec.base.errors import StoreError, TrtspecError
from trtspec.models.hub import find_commit
from trtspec.pipeline.store.entry import Entry
from trtspec.pipeline.store.platform import platform_of
from trtspec.pipeline.store.store import Store
from trtspec.recipe.loader import LoadedRecipe
from trtspec.recipe.releases import release_of

_HUB_TIMEOUT_S = 10


def stored_recipes(store: Store, recipes: Iterable[LoadedRecipe], warn: Callable[[str], None]) -> set[Path]:
    """Returns the files of the recipes whose builds the store has.

    A recipe that cannot be looked up is left out and reported to `warn`. If this machine may not read the
    store, all recipes are: the caller need not have the rights of the builds. The build asks the store again.
    """
    found = set[Path]()
    try:
        entries = store.entries()
    except StoreError as error:
        warn(f"{error}; the builds will ask the store")
        return found
    for loaded in recipes:
        try:
            if has_pair(entries, loaded, _commits(loaded)):
                found.add(loaded.path)
        except TrtspecError as error:
            warn(f"{loaded.path}: {error}; the build will ask the store")
    return found


def has_pair(entries: Iterable[Entry], loaded: LoadedRecipe, commits: Mapping[str, str]) -> bool:
    """Says whether there is a build of this recipe, for its GPU and release, from these commits of models.

    `commits` has the commit of each model of the Hub, by its role. A model in a folder has no commit, so its
    build is not found here. The job finds it in the store.
    """
    recipe = loaded.recipe
    platform = platform_of(recipe.hardware.gpu, release_of(recipe.engine.release))
    return any(
        entry.role == "pair"
        and entry.platform == platform
        and entry.manifest["recipe"] == loaded.digest
        and {role: model["revision"] for role, model in entry.manifest["models"].items()} == commits
        for entry in entries
    )


def _commits(loaded: LoadedRecipe) -> dict[str, str]:
    return {
        role: find_commit(location, loaded.recipe.models[role].revision, _HUB_TIMEOUT_S)
        for role, location in loaded.locations.items()
        if isinstance(location, str)
    }
