"""Recipes together with their backends: a recipe alone knows only a backend's name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from trtspec.backends.table import runners_of
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import loader
from trtspec.recipe.loader import LoadedRecipe, parse, parsed
from trtspec.recipe.schema import Recipe


def load(path: str | Path, backend: str | None = None) -> LoadedRecipe:
    """Reads and validates a recipe; raises RecipeError with every problem found. It is `trtspec.load_recipe`.

    `backend` is the one that a flag or the environment names instead of the recipe's own; then its rules
    apply.
    """
    return _judged(parse(Path(path)).on(backend))


def loads(data: bytes, path: Path) -> LoadedRecipe:
    """Validates what a recipe at `path` would say; raises RecipeError with every problem found."""
    return _judged(parsed(data, path))


def _judged(loaded: LoadedRecipe) -> LoadedRecipe:
    findings = contradictions(loaded.recipe, is_asked=loaded.asked is not None)
    if loaded.asked:
        move = f"trtspec migrate {loaded.path} --to {loaded.asked} writes a recipe for it"
        repairs = {"engine.backend": "name a GPU in hardware.gpu, or another backend"}
        findings = (replace(found, repair=repairs.get(found.subject, move)) for found in findings)
    loaded.check(findings)
    return loaded


def contradictions(recipe: Recipe, *, is_asked: bool = False) -> Iterator[Finding]:
    """Finds keys of the recipe that contradict each other, or that its backend does not have.

    Each subject is the dotted key to change. A backend that takes any recipe ignores the keys of others, if
    it `is_asked` for in place of the recipe's own.
    """
    runners = runners_of(recipe)
    backend = runners[Role.TARGET]
    if not (is_asked and backend.takes_any_recipe):
        yield from backend.unsupported(recipe)
        yield from backend.contradictions(recipe)
        for role, runner in runners.items():
            yield from runner.precision_flaws(recipe.models[role], role, recipe.hardware.gpu)
    yield from backend.flaws_of_engines(recipe)
    yield from loader.contradictions(recipe)
