"""Reads a recipe file into a `LoadedRecipe`, or raises one error with everything that is wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from trtspec.errors import RecipeError
from trtspec.findings import Finding
from trtspec.recipe.limits import contradictions
from trtspec.recipe.problems import problems_of
from trtspec.recipe.schema import Model, Recipe
from trtspec.recipe.yaml_reader import MAX_BYTES, Unreadable, line_of, read

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A valid recipe and its file; `lines` has the 1-based line of each dotted key of the file."""

    recipe: Recipe
    path: Path
    lines: Mapping[str, int]

    def problem(self, key: str, problem: str, repair: str | None = None) -> Finding:
        """A finding at a dotted key, with the line of the key or of the section that should have it."""
        return Finding(key, problem, repair, line=line_of(key, self.lines))

    def model_location(self, model: Model) -> Path | str:
        """The model's folder, which may not exist, or its Hub id.

        A folder is what exists relative to the recipe's folder, or what starts with `./`, `../`, `/` or `~`.
        """
        return model_location(model.model, self.path.parent)


def model_location(value: str, folder: Path) -> Path | str:
    """What `LoadedRecipe.model_location` returns for a model of this name; `folder` is the recipe's."""
    path = Path(os.path.normpath(folder / os.path.expanduser(value)))
    if value.startswith((".", "/", "~")) or path.is_dir():
        return path
    return value


def load(path: Path) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError with every problem found."""
    try:
        data = _bytes(path)
    except Unreadable as error:
        raise RecipeError(path, error.findings) from None
    return loads(data, path)


def loads(data: bytes, path: Path) -> LoadedRecipe:
    """Validates what a recipe at `path` says, or would say; raises RecipeError with every problem found."""
    try:
        document = read(data)
    except Unreadable as error:
        raise RecipeError(path, error.findings) from None
    findings, recipe = list(document.findings), None
    try:
        recipe = Recipe.model_validate(document.values)
    except ValidationError as error:
        # A value that the reader refused is None here; pydantic would complain about it a second time.
        told = {finding.subject for finding in findings}
        findings += [finding for finding in problems_of(error, document) if finding.subject not in told]
    if recipe is None or findings:
        raise RecipeError(path, findings)
    loaded = LoadedRecipe(recipe, path, document.lines)
    findings = [
        replace(found, line=line_of(found.subject, document.lines))
        for found in (*contradictions(recipe), *_locations(loaded))
    ]
    if findings:
        raise RecipeError(path, findings)
    return loaded


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Unreadable("no such file", f"`trtspec init {path}` writes a starter recipe") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None


def _locations(loaded: LoadedRecipe) -> Iterator[Finding]:
    for role, model in loaded.recipe.models.items():
        location = loaded.model_location(model)
        if isinstance(location, str) and not _HUB_ID.match(location):
            problem = f"found {location!r:.80}, which is neither a folder nor a Hub id"
            yield Finding(f"{role}.model", problem, "write owner/name, or ./folder")
        if isinstance(location, Path) and model.revision:
            problem = "a folder has no revisions; only a Hub model has"
            yield Finding(f"{role}.revision", problem, "remove this line")
