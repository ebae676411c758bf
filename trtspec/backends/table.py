"""The table of backends: the name of each is that of its folder, which is imported when it is asked for.

A folder has a module `backend` with a constant `BACKEND`. Nothing else imports from a folder by name.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from trtspec.backends.planner import Planner
from trtspec.recipe.backends import NAMES

if TYPE_CHECKING:
    from trtspec.base.roles import Role
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
