"""The bounds of guides: what is refused unread.

Reading it might take minutes or gigabytes, or the guide would not be followed as it is meant.
"""

from __future__ import annotations

import json
from typing import Any

from trtspec.serving.errors import GuideError
from trtspec.serving.executor import Guide, GuideType
from trtspec.serving.guides.schemas import check_schema, check_tags

MAX_CHARACTERS = 32_768
MAX_DEPTH = 64
"""The largest nesting depth of braces and brackets: xgrammar's time grows with its cube."""
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
_JSON = {GuideType.JSON_SCHEMA: check_schema, GuideType.STRUCTURAL_TAG: check_tags}


def check(guide: Guide) -> None:
    """Raises `GuideError` for a guide that is missing, too long or too deep, or broken JSON.

    Also raises it for a JSON schema with a part that xgrammar does not follow.
    """
    text = guide.guide
    if guide.guide_type is GuideType.JSON:
        if text:
            raise GuideError("json means any JSON and takes no guide; use the type json_schema for a schema")
        return
    if not text:
        raise GuideError(f"a guide of the type {guide.guide_type.value} is empty")
    if len(text) > MAX_CHARACTERS:
        raise GuideError(f"it has {len(text)} characters, more than {MAX_CHARACTERS}")
    check_content = _JSON.get(guide.guide_type)
    if check_content is None:
        _check_depth(_depth(text))
        return
    try:
        content = json.loads(text)
    except RecursionError:
        raise GuideError(_TOO_DEEP) from None
    except ValueError as error:
        raise GuideError(f"it is not JSON: {error}") from None
    _check_depth(_json_depth(content))
    check_content(content)


def _check_depth(depth: int) -> None:
    if depth > MAX_DEPTH:
        raise GuideError(_TOO_DEEP)


def _json_depth(content: Any) -> int:
    """Returns how deep objects and lists stand in each other."""
    layer, depth = [content], 0
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
