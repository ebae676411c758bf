"""Records for each value of a plan its origin and its reason.

A flag overrides the environment, the environment overrides the recipe, and the recipe overrides a default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from trtspec.base.errors import RecipeError
from trtspec.recipe.loader import LoadedRecipe

Origin = Literal["flag", "environment", "recipe", "model", "default"]
ENVIRONMENT = {"output": "TRTSPEC_OUTPUT", "engine.backend": "TRTSPEC_BACKEND"}


@dataclass(frozen=True, slots=True)
class Choice:
    """One value of the plan, by its key in the recipe."""

    key: str
    value: bool | int | float | str
    origin: Origin
    reason: str


class Chooser:
    """Picks a value for a key and remembers the choice."""

    def __init__(
        self, loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
    ) -> None:
        self.loaded, self._flags, self._environment = loaded, flags, environment
        self.choices: list[Choice] = []

    def __call__(self, key: str, default: Any, reason: str, origin: Origin = "default") -> Any:
        """Returns the value of the first source that has one, and keeps the choice.

        `origin` and `reason` are those of the default.
        """
        flag, variable = self._flags.get(key), ENVIRONMENT.get(key, "")
        written = self.loaded.recipe.written(key)
        if flag is not None:
            choice = Choice(key, flag, "flag", "as requested")
        elif self._environment.get(variable):
            choice = Choice(key, self._environment[variable], "environment", f"{variable} is set")
        elif written is not None:
            choice = Choice(key, written, "recipe", "as written")
        else:
            choice = Choice(key, default, origin, reason)
        self.choices.append(choice)
        return choice.value

    def error(self, key: str, problem: str, repair: str | None = None) -> RecipeError:
        """Returns an error about the value of a key, for the caller to raise."""
        return RecipeError(self.loaded.path, [self.loaded.problem(key, problem, repair)])


def build_folder(
    loaded: LoadedRecipe, flags: Mapping[str, str | None], environment: Mapping[str, str]
) -> Path:
    """Returns the build directory, which is known before the facts are."""
    return choose_output(Chooser(loaded, flags, environment))


def asked_backend(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> str | None:
    """Returns the backend that a flag or the environment asks for; None if the recipe's own applies."""
    key = "engine.backend"
    return flags.get(key) or environment.get(ENVIRONMENT[key]) or None


def choose_output(choose: Chooser) -> Path:
    name = choose.loaded.recipe.name
    return Path(choose("output", f"build/{name}", "a folder of the recipe's name under this one"))
