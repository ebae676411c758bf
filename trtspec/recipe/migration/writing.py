"""Writes a recipe's text from dotted keys, with the origin of each as a comment."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.recipe.edit import flow
from trtspec.recipe.schema import Recipe

_COLUMN = 44


def recipe_text(values: Mapping[str, Any], origins: Mapping[str, str], head: str) -> str:
    """Returns YAML with the sections in the schema's order, each key on a line with its origin after it."""
    lines = [f"# {head}"]
    for section in Recipe.model_fields:
        keys = {key: value for key, value in values.items() if key.partition(".")[0] == section}
        if not keys:
            continue
        if any("." in key for key in keys):
            lines += ["", f"{section}:", *_block(keys, origins, f"{section}.", 2)]
        else:
            lines.append(_line(0, section, keys[section], origins.get(section)))
    return "\n".join(lines) + "\n"


def _block(keys: Mapping[str, Any], origins: Mapping[str, str], path: str, indent: int) -> list[str]:
    """Returns the lines of the keys below a path. The value of a section is its kind."""
    lines = []
    for name in dict.fromkeys(key.removeprefix(path).partition(".")[0] for key in keys):
        key = path + name
        inner = {other: value for other, value in keys.items() if other.startswith(f"{key}.")}
        if not inner:
            lines.append(_line(indent, name, keys[key], origins.get(key)))
            continue
        lines.append(f"{' ' * indent}{name}:")
        if key in keys:
            lines.append(_line(indent + 2, "kind", keys[key], origins.get(key)))
        lines += _block(inner, origins, f"{key}.", indent + 2)
    return lines


def _line(indent: int, name: str, value: Any, origin: str | None) -> str:
    written = f"{' ' * indent}{name}: {flow(value)}"
    return f"{written.ljust(_COLUMN)}  # {origin}" if origin else written
