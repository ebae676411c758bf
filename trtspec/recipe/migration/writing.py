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
            lines += ["", f"{section}:", *_block(keys, origins, len(section) + 1, 2)]
        else:
            lines.append(_line(0, section, keys[section], origins.get(section)))
    return "\n".join(lines) + "\n"


def _block(keys: Mapping[str, Any], origins: Mapping[str, str], begin: int, indent: int) -> list[str]:
    """Returns the lines of the keys with the same beginning, up to the character `begin`."""
    lines, done = [], set[str]()
    for key, value in keys.items():
        name, dot, _ = key[begin:].partition(".")
        if name in done:
            continue
        done.add(name)
        if dot:
            inner = {other: value for other, value in keys.items() if other[begin:].startswith(f"{name}.")}
            lines += [f"{' ' * indent}{name}:", *_block(inner, origins, begin + len(name) + 1, indent + 2)]
        else:
            lines.append(_line(indent, name, value, origins.get(key)))
    return lines


def _line(indent: int, name: str, value: Any, origin: str | None) -> str:
    written = f"{' ' * indent}{name}: {flow(value)}"
    return f"{written.ljust(_COLUMN)}  # {origin}" if origin else written
