"""The table of backends: the name of each is that of its folder, which is imported when it is asked for.

A folder has a module `backend` with a constant `BACKEND`. Nothing else imports from a folder by name.
Recipes are read here: a recipe alone knows only the name of its backend, which has rules of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from trtspec.backends.planner import Planner
from trtspec.base.findings import Finding
from trtspec.base.roles import Role
from trtspec.recipe import loader
from trtspec.recipe.backends import NAMES
from trtspec.recipe.loader import LoadedRecipe, parse, parsed
from trtspec.recipe.schema import Recipe


@cache
def backend_named(name: str) -> Planner:
    """Returns the backend that recipes call `name`; raises KeyError for a name that is not in the table."""
    if name not in NAMES:
        raise KeyError(name)
    found: Planner = import_module(f"{__package__}.{name}.backend").BACKEND
    return found


def runner_of(recipe: Recipe) -> Planner:
    """Returns the recipe's backend, which answers what it is like."""
    return backend_named(recipe.backend)


def runners_of(recipe: Recipe) -> dict[Role, Planner]:
    """Returns the backend of each engine."""
    return {role: backend_named(recipe.backend_of(role)) for role in recipe.models}


def backends() -> tuple[Planner, ...]:
    """Returns all backends in the order of the table."""
    return tuple(map(backend_named, NAMES))


def all_releases() -> Iterator[str]:
    """Yields the releases of all backends that a recipe may name."""
    for backend in backends():
        yield from backend.versions


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
