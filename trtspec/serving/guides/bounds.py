"""The bounds of guides: what is refused unread, since reading it might take minutes or gigabytes."""

from __future__ import annotations

import json
from typing import Any

from trtspec.serving.errors import GuideError
from trtspec.serving.executor import Guide, GuideType

MAX_CHARACTERS = 32_768
MAX_DEPTH = 64
"""How deep braces and brackets may stand in each other: the time that xgrammar takes grows with its cube."""
_JSON = (GuideType.JSON_SCHEMA, GuideType.STRUCTURAL_TAG)


def check(guide: Guide) -> None:
    """Raises `GuideError` for a guide that is missing, too long or too deep, or broken JSON."""
    text = guide.guide
    if guide.guide_type is GuideType.JSON:
        if text:
            raise GuideError("json is any JSON and takes no guide; a schema has the type json_schema")
        return
    if not text:
        raise GuideError(f"a guide of the type {guide.guide_type.value} is empty")
    if len(text) > MAX_CHARACTERS:
        raise GuideError(f"{len(text)} characters are more than {MAX_CHARACTERS}")
    depth = _json_depth(text) if guide.guide_type in _JSON else _depth(text)
    if depth > MAX_DEPTH:
        raise GuideError(f"it is nested more than {MAX_DEPTH} deep")


def _json_depth(text: str) -> int:
    try:
        layer: list[Any] = [json.loads(text)]
    except RecursionError:
        return MAX_DEPTH + 1
    except ValueError as error:
        raise GuideError(f"it is not JSON: {error}") from None
    depth = 0
    while layer := [value for value in layer if isinstance(value, (dict, list))]:
        depth += 1
        layer = [item for value in layer for item in _inside(value)]
    return depth


def _inside(value: Any) -> list[Any]:
    return list(value.values()) if isinstance(value, dict) else value


def _depth(text: str) -> int:
    """Returns how deep groups stand in each other; brackets in quotes or classes count as well."""
    depth = deepest = 0
    escaped = False
    for character in text:
        if escaped:
            escaped = False
        elif character == "\\":
            escaped = True
        elif character in "({[":
            depth += 1
            deepest = max(deepest, depth)
        elif character in ")}]":
            depth = max(depth - 1, 0)
    return deepest
