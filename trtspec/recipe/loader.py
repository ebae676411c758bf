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
from trtspec.base.roles import Role
from trtspec.recipe.limits import contradictions, contradictions_of_any_backend
from trtspec.recipe.problems import problems_of
from trtspec.recipe.schema import Recipe
from trtspec.recipe.yaml_reader import MAX_BYTES, Unreadable, read

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
        return _with_line(Finding(key, problem, repair), self.lines)

    @property
    def locations(self) -> dict[Role, Path | str]:
        """The models' folders, which may not exist, or their Hub ids.

        A folder is what exists relative to the recipe's folder, or what starts with `./`, `../`, `/` or `~`.
        """
        models, folder = self.recipe.models, self.path.parent
        return {role: model_location(model.model, folder) for role, model in models.items()}


def model_location(value: str, folder: Path) -> Path | str:
    """Returns the folder, or the Hub id, of a model of this name; `folder` is the recipe's."""
    path = Path(os.path.normpath(folder / os.path.expanduser(value)))
    if value.startswith((".", "/", "~")) or path.is_dir():
        return path
    return value


def load(path: str | Path, backend: str | None = None) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError with every problem found. It is `trtspec.load_recipe`.

    `backend` is the one that a flag or the environment names instead of the recipe's own; then its rules
    apply.
    """
    parsed = parse(Path(path))
    return _judged(parsed, backend)


def loads(data: bytes, path: Path) -> LoadedRecipe:
    """Validates what a recipe at `path` would say; raises RecipeError with every problem found."""
    return _judged(_parsed(data, path), None)


def parse(path: Path) -> LoadedRecipe:
    """Reads a recipe by the schema alone, without the rules between its keys; raises RecipeError."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        problem = Finding("", "no such file", f"`trtspec init {path}` writes a starter recipe")
        raise RecipeError(path, [problem]) from None
    except OSError as error:
        raise RecipeError(path, [Finding("", f"cannot be read: {error.strerror}")]) from None
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
        problems = (found for found in problems_of(error, document.written) if found.subject not in told)
        findings += [_with_line(found, document.lines) for found in problems]
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
    if findings := [*_contradictions(loaded), *_locations(loaded)]:
        raise RecipeError(loaded.path, [_with_line(found, loaded.lines) for found in findings])
    return loaded


def _contradictions(loaded: LoadedRecipe) -> Iterator[Finding]:
    if loaded.asked is None:
        yield from contradictions(loaded.recipe)
        return
    move = f"trtspec migrate {loaded.path} --to {loaded.asked} writes a recipe for it"
    repairs = {"engine.backend": "name a GPU in hardware.gpu, or another backend"}
    find = contradictions_of_any_backend if loaded.recipe.runner.takes_any_recipe else contradictions
    for found in find(loaded.recipe):
        yield replace(found, repair=repairs.get(found.subject, move))


def _locations(loaded: LoadedRecipe) -> Iterator[Finding]:
    for role, location in loaded.locations.items():
        if isinstance(location, str) and not _HUB_ID.match(location):
            problem = f"found {location!r:.80}, which is neither a folder nor a Hub id"
            yield Finding(f"{role}.model", problem, "write owner/name, or ./folder")
        if isinstance(location, Path) and loaded.recipe.models[role].revision:
            problem = "a folder has no revisions; only a Hub model has"
            yield Finding(f"{role}.revision", problem, "remove this line")


def _with_line(found: Finding, lines: Mapping[str, int]) -> Finding:
    """Returns a finding with the line of its key, or of the nearest section around it that the file has."""
    key = found.subject
    while key and key not in lines:
        key = key.rpartition(".")[0]
    return replace(found, line=lines.get(key))
