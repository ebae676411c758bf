"""Removes the keys of a recipe that the rules refuse, with the reason of each, so that the recipe loads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.table import backend_named
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.methods.any_method import WITHOUT_MODEL
from trtspec.methods.method import Method
from trtspec.methods.table import METHODS
from trtspec.recipe.edit import edit, value_of
from trtspec.recipe.loader import LoadedRecipe, loads
from trtspec.recipe.yaml_reader import read

_METHOD, _RELEASE = "speculation.method", "engine.release"
_NEEDED = ("", "name", "target", "target.model", "draft.model", "hardware", "hardware.gpu", "engine.backend")


def settle(text: str, path: Path) -> tuple[str, LoadedRecipe, list[Finding]]:
    """Returns a text that loads from `path`, its recipe, and a finding for each removed key.

    It also removes keys that the server lacks on a cluster, and replaces a method that the backend does not
    run by one that it runs. Raises `RecipeError` if the recipe needs a refused key.
    """
    removed: list[Finding] = []
    while True:
        loaded, findings = _loaded(text, path)
        if loaded and not findings:
            return text, loaded, removed
        if not (changes := without(findings[0].subject, read(text.encode()).values)):
            raise RecipeError(path, findings)
        text = edit(text, changes, path)
        removed.append(findings[0])


def _loaded(text: str, path: Path) -> tuple[LoadedRecipe | None, list[Finding]]:
    try:
        loaded = loads(text.encode(), path)
    except RecipeError as error:
        return None, list(error.findings)
    return loaded, list(loaded.recipe.runner.lacking_on_clusters(loaded.recipe))


def without(key: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes that remove a key; none if the recipe needs the key or lacks it.

    A release is replaced by one that runs the method, if only some releases do.
    """
    if key == _METHOD:
        return _other_method(values)
    if key == _RELEASE and (releases := _releases_with_method(values)):
        return {key: releases[0]}
    if key in _NEEDED or value_of(key, values) is None:
        return {}
    return {key: None}


def _other_method(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the changes to a method that every backend runs and that needs no other keys.

    It keeps the options that it has too.
    """
    other = METHODS.get(_kind(values), Method).gives_way_to
    if other is None:
        return {}
    changes: dict[str, Any] = {}
    if "draft" not in values or not METHODS[other].has_model:
        other = WITHOUT_MODEL[0]
        changes = {"draft": None} if "draft" in values else {}
    method = value_of(_METHOD, values)
    options = method.keys() - {"kind"} if isinstance(method, dict) else set()
    kept = options & METHODS[other].model_fields.keys()
    if not kept:
        return {_METHOD: other, **changes}
    lost = {f"{_METHOD}.{name}": None for name in sorted(options - kept)}
    return {f"{_METHOD}.kind": other, **lost, **changes}


def _releases_with_method(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the releases that run the method if not all of the backend's do, and none otherwise."""
    backend = value_of("engine.backend", values)
    cell = backend_named(backend).methods.get(_kind(values)) if backend else None
    return cell.releases if cell else ()


def _kind(values: Mapping[str, Any]) -> str:
    method = value_of(_METHOD, values)
    return str(method.get("kind") if isinstance(method, dict) else method)
