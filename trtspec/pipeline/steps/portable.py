"""Names, values and command lines without this machine's paths, so that every machine writes the same."""

from __future__ import annotations

from pathlib import Path

from trtspec.pipeline.plan.choices import Choice


def portable_name(model: str) -> str:
    """Returns the name of a model or a dataset; of an absolute path, only the last part."""
    return Path(model).name if Path(model).is_absolute() or model.startswith("~") else model


def portable_value(choice: Choice) -> bool | int | float | str:
    value = choice.value
    return portable_name(value) if choice.key.endswith(".dataset") and isinstance(value, str) else value


def portable_command(command: tuple[str, ...], recipe: Path, build: Path) -> list[str]:
    """Returns a command's words with paths relative to the build directory, and the recipe by its name."""
    places = {str(recipe): recipe.name, str(build): "."}
    return [places.get(word, word.removeprefix(f"{build}/")) for word in command]
