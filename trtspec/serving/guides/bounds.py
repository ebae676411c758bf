"""The bounds of guides, which refuse a guide before xgrammar sees it.

Its compilation might take minutes or gigabytes, or xgrammar would ignore a part of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from trtspec.serving.errors import GuideError
from trtspec.serving.executor import Guide, GuideType

MAX_CHARACTERS = 32_768
MAX_DEPTH = 64
"""The largest nesting depth of braces and brackets: xgrammar's time grows with its cube."""
_TOO_DEEP = f"it is nested more than {MAX_DEPTH} deep"
# xgrammar silently ignores these keywords (`cpp/json_schema_converter.cc`), and takes a `$ref` to another
# document, or `allOf` of several schemas, for any JSON. A client that sends such a schema would get answers
# that violate it. Keywords that only narrow a value (`multipleOf`, `uniqueItems`, `contains`) are accepted.
_IGNORED = (
    *("not", "if", "dependentRequired", "dependentSchemas", "dependencies"),
    *("$dynamicRef", "$recursiveRef"),
)
# Of a schema with one of these it follows only that one, and of two of them only one.
_ALONE = ("$ref", "anyOf", "oneOf", "allOf")
_SHAPES = (
    *("properties", "patternProperties", "additionalProperties", "required"),
    *("items", "prefixItems", "const", "enum"),
)
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)
_OF_TAGS = ("json_schema", "schema")
_TYPES = {"dict": "object", "list": "array", "str": "string", "bool": "boolean", "NoneType": "null"}
# xgrammar takes an unknown escape for its letter, and anchors inside, or a schema's lookaheads, for nothing.
_ESCAPE = re.compile(
    r"\\(?:[\WabefnrtvdDsSwW0_]|x[\da-fA-F]|u\{?[\da-fA-F]|U[\da-fA-F]{8}|c[a-zA-Z]|(.))", re.DOTALL
)
_CLASS = re.compile(r"\[\^?[^\]]*\]")
_IGNORED_INSIDE = re.compile(r"\(\?<?[=!]|(?<=[^(|^:])\^|\$(?=[^)|$])")
# A client sees 80 characters of a problem.
_LONGEST_REFERENCE = 32


def check(guide: Guide) -> None:
    """Raises `GuideError` for a guide that is missing, too long, too deep or malformed JSON.

    It also raises it for a JSON schema with a part that xgrammar ignores.
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
        if guide.guide_type is GuideType.REGEX:
            _check_regex(text)
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
    """Returns the nesting depth of objects and lists."""
    layer, depth = [content], 0
    while layer := [value for value in layer if isinstance(value, (dict, list))]:
        depth += 1
        layer = [item for value in layer for item in (value.values() if isinstance(value, dict) else value)]
    return depth


def _depth(text: str) -> int:
    """Returns the nesting depth of groups. Brackets in quotes or classes count too."""
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


def _check_regex(text: str) -> None:
    """Raises `GuideError` for a part that xgrammar ignores; it reports other problems itself."""
    ignored = [found[0] for found in _ESCAPE.finditer(text) if found[1]]
    ignored += _IGNORED_INSIDE.findall(_CLASS.sub("x", _ESCAPE.sub("x", text)))
    if ignored:
        raise GuideError(f"{ignored[0]} cannot be followed at its place in the regular expression")


def _check_schema(schema: Any) -> None:
    """Raises `GuideError` for a part that xgrammar ignores; it reports other problems of a schema itself."""
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            _check_keywords(part)
            left += _parts(part)


def _check_tags(tags: Any) -> None:
    """Raises `GuideError` for a structural tag with such a schema, in the present form or that of 0.1.21."""
    left = [tags]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for keyword in _OF_TAGS:
                _check_schema(part.get(keyword))
            if part.get("type") == "regex" and isinstance(part.get("pattern"), str):
                _check_regex(part["pattern"])
            left += (value for key, value in part.items() if key not in _OF_TAGS)
        elif isinstance(part, list):
            left += part


def _check_keywords(part: dict[str, Any]) -> None:
    for keyword in _IGNORED:
        if keyword in part:
            raise GuideError(f"{keyword} of the schema cannot be followed")
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise GuideError(f"$ref {reference[:_LONGEST_REFERENCE]!r} is outside of the schema")
    several = part.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        raise GuideError("allOf of several schemas cannot be followed; merge them")
    for keyword in ("anyOf", "oneOf", "allOf", "type", "enum"):  # xgrammar takes some for an empty text.
        if part.get(keyword) == []:
            raise GuideError(f"{keyword} of the schema is empty, so it allows nothing")
    properties, expressions = part.get("properties"), part.get("patternProperties")
    for expression in (part.get("pattern"), *(expressions if isinstance(expressions, dict) else ())):
        _check_regex(expression if isinstance(expression, str) else "")
    for name in part["required"] if isinstance(part.get("required"), list) else ():
        if not isinstance(properties, dict) or name not in properties:
            raise GuideError(f"required {str(name)[:_LONGEST_REFERENCE]!r} is none of the properties")
    _check_values(part)
    alone = [keyword for keyword in _ALONE if keyword in part]
    others = [keyword for keyword in (*alone[1:], *_SHAPES) if keyword in part]
    if alone and others:
        raise GuideError(f"{alone[0]} and {others[0]} of one schema cannot be followed together; merge them")


def _check_values(part: dict[str, Any]) -> None:
    """Raises `GuideError` for a value that the type, or an `enum` beside `const`, forbids."""
    types = part.get("type", [])
    types, enum = types if isinstance(types, list) else [types], part.get("enum", [])
    for value in [part["const"]] if "const" in part else enum if isinstance(enum, list) else []:
        own = [_TYPES.get(type(value).__name__, "number")]
        if type(value) is int or (type(value) is float and value.is_integer()):
            own.append("integer")
        if (types and not any(name in types for name in own)) or ("enum" in part and value not in enum):
            said = json.dumps(value)[:_LONGEST_REFERENCE]
            raise GuideError(f"the value {said} is not allowed by the rest of its schema")


def _parts(part: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas in a schema; values of `const`, `enum` and `default` are none."""
    for keyword in _NAMED:
        if isinstance(named := part.get(keyword), dict):
            yield from named.values()
    for keyword in _LISTED:
        if isinstance(listed := part.get(keyword), list):
            yield from listed
    for keyword in _SINGLE:
        yield part.get(keyword)


_JSON = {GuideType.JSON_SCHEMA: _check_schema, GuideType.STRUCTURAL_TAG: _check_tags}
