"""Reads a recipe file into a `LoadedRecipe`, or raises one error with everything that is wrong in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError

from trtspec.backends import table
from trtspec.base.errors import RecipeError
from trtspec.base.findings import Finding
from trtspec.recipe.limits import contradictions, contradictions_of_any_backend
from trtspec.recipe.problems import problems_of
from trtspec.recipe.schema import Recipe, RecipeModel
from trtspec.recipe.yaml_reader import MAX_BYTES, Unreadable, line_of, read

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)?\Z")


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A valid recipe and its file."""

    recipe: Recipe
    """The recipe, of the backend `asked` if there is one."""
    path: Path
    lines: Mapping[str, int]
    """The 1-based line of each dotted key of the file."""
    digest: str
    """The digest of the file's recipe, even where `asked` names another backend."""
    asked: str | None = None
    """The backend that a flag or the environment names instead of the recipe's own, if one does."""

    def problem(self, key: str, problem: str, repair: str | None = None) -> Finding:
        """A finding at a dotted key, with the line of the key or of the section that should have it."""
        return Finding(key, problem, repair, line=line_of(key, self.lines))

    def model_location(self, model: RecipeModel) -> Path | str:
        """The model's folder, which may not exist, or its Hub id.

        A folder is what exists relative to the recipe's folder, or what starts with `./`, `../`, `/` or `~`.
        """
        return model_location(model.model, self.path.parent)


def model_location(value: str, folder: Path) -> Path | str:
    """Returns the folder, or the Hub id, of a model of this name; `folder` is the recipe's."""
    path = Path(os.path.normpath(folder / os.path.expanduser(value)))
    if value.startswith((".", "/", "~")) or path.is_dir():
        return path
    return value


def load(path: str | Path, backend: str | None = None) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError with every problem found. It is `trtspec.load_recipe`.

    `backend` is what a flag or the environment asks for instead of the recipe's own; its rules hold then.
    """
    return _judged(parse(Path(path)), backend)


def loads(data: bytes, path: Path) -> LoadedRecipe:
    """Validates what a recipe at `path` would say; raises RecipeError with every problem found."""
    return _judged(_parsed(data, path), None)


def parse(path: Path) -> LoadedRecipe:
    """Reads a recipe by the schema alone, without the rules between its keys; raises RecipeError."""
    try:
        data = _bytes(path)
    except Unreadable as error:
        raise RecipeError(path, error.findings) from None
    return _parsed(data, path)


def _parsed(data: bytes, path: Path) -> LoadedRecipe:
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
    return LoadedRecipe(recipe, path, document.lines, recipe.digest)


def _judged(parsed: LoadedRecipe, backend: str | None) -> LoadedRecipe:
    if backend is not None and backend not in table.NAMES:
        problem = parsed.problem(
            "engine.backend", f"found {backend!r:.80}", f"use {' or '.join(table.NAMES)}"
        )
        raise RecipeError(parsed.path, [problem])
    loaded = parsed
    if backend and backend != parsed.recipe.backend:
        loaded = replace(parsed, recipe=parsed.recipe.on(backend), asked=backend)
    findings = [
        replace(found, line=line_of(found.subject, loaded.lines))
        for found in (*_contradictions(loaded), *_locations(loaded))
    ]
    if findings:
        raise RecipeError(loaded.path, findings)
    return loaded


def _bytes(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise Unreadable("no such file", f"`trtspec init {path}` writes a starter recipe") from None
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror}") from None


def _contradictions(loaded: LoadedRecipe) -> Iterator[Finding]:
    if loaded.asked is None:
        yield from contradictions(loaded.recipe)
        return
    move = f"trtspec migrate {loaded.path} --to {loaded.asked} writes a recipe for it"
    repairs = {"engine.backend": "name a GPU in hardware.gpu, or another backend"}
    takes_any = table.backend_named(loaded.asked).takes_any_recipe
    find = contradictions_of_any_backend if takes_any else contradictions
    for found in find(loaded.recipe):
        yield replace(found, repair=repairs.get(found.subject, move))


def _locations(loaded: LoadedRecipe) -> Iterator[Finding]:
    for role, model in loaded.recipe.models.items():
        location = loaded.model_location(model)
        if isinstance(location, str) and not _HUB_ID.match(location):
            problem = f"found {location!r:.80}, which is neither a folder nor a Hub id"
            yield Finding(f"{role}.model", problem, "write owner/name, or ./folder")
        if isinstance(location, Path) and model.revision:
            problem = "a folder has no revisions; only a Hub model has"
            yield Finding(f"{role}.revision", problem, "remove this line")
