"""Values as every machine writes them, with no path of this one in them."""

from __future__ import annotations

from pathlib import Path

from trtspec.plan.choices import Choice


def portable_name(model: str) -> str:
    """Of a model or a dataset."""
    return Path(model).name if Path(model).is_absolute() or model.startswith("~") else model


def portable_value(choice: Choice) -> bool | int | float | str:
    value = choice.value
    return portable_name(value) if choice.key.endswith(".dataset") and isinstance(value, str) else value


def portable_command(command: tuple[str, ...], recipe: Path, build: Path) -> list[str]:
    """The command as seen from the build directory."""
    places = {str(recipe): recipe.name, str(build): "."}
    return [places.get(word, word.removeprefix(f"{build}/")) for word in command]
