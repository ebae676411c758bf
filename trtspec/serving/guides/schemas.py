"""JSON schemas that xgrammar would follow as if they allowed any JSON.

xgrammar passes over the keywords below without a word (`cpp/json_schema_converter.cc`), and takes a `$ref` to
another document, or `allOf` of several schemas, for any JSON. A client that sends such a schema would get
answers that break it. Keywords that only make a value narrower (`multipleOf`, `uniqueItems`, `contains`) are
left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from trtspec.serving.errors import GuideError

_IGNORED = ("not", "if", "dependentRequired", "dependentSchemas", "$dynamicRef", "$recursiveRef")
_NAMED = ("properties", "patternProperties", "$defs", "definitions")
_LISTED = ("anyOf", "oneOf", "allOf", "prefixItems", "items")
_SINGLE = (
    *("items", "additionalItems", "unevaluatedItems", "contains"),
    *("additionalProperties", "unevaluatedProperties", "propertyNames"),
)
_OF_TAGS = ("json_schema", "schema")
# A client sees 80 characters of a problem.
_LONGEST_REFERENCE = 32


def check_schema(schema: Any) -> None:
    """Raises `GuideError` for a schema with a part that xgrammar does not follow.

    What else is wrong with the schema, xgrammar says itself.
    """
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            _check(part)
            left += _parts(part)


def check_tags(tags: Any) -> None:
    """Raises `GuideError` for a structural tag with such a schema, in its form of today or that of 0.1.21."""
    left = [tags]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            for keyword in _OF_TAGS:
                check_schema(part.get(keyword))
            left += (value for key, value in part.items() if key not in _OF_TAGS)
        elif isinstance(part, list):
            left += part


def _check(part: dict[str, Any]) -> None:
    for keyword in _IGNORED:
        if keyword in part:
            raise GuideError(f"{keyword} of the schema cannot be followed")
    reference = part.get("$ref")
    if isinstance(reference, str) and reference != "#" and not reference.startswith("#/"):
        raise GuideError(f"$ref {reference[:_LONGEST_REFERENCE]!r} is outside of the schema")
    several = part.get("allOf")
    if isinstance(several, list) and len(several) > 1:
        raise GuideError("allOf of several schemas cannot be followed; merge them")


def _parts(part: dict[str, Any]) -> Iterator[Any]:
    """Yields the schemas in a schema; what stands in `const`, `enum` and `default` is none."""
    for keyword in _NAMED:
        if isinstance(named := part.get(keyword), dict):
            yield from named.values()
    for keyword in _LISTED:
        if isinstance(listed := part.get(keyword), list):
            yield from listed
    for keyword in _SINGLE:
        yield part.get(keyword)
