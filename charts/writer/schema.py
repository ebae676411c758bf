"""The JSON Schema of the chart's values, which Helm holds them against."""

from __future__ import annotations

import json
from typing import Any

from trtspec.kubernetes.helm import OF_RELEASE, key_of
from trtspec.kubernetes.values import Values


def schema() -> str:
    """Returns the schema. What may be null may be left out: Helm takes a null for that."""
    found = _renamed(Values.model_json_schema(mode="validation"))
    for key in map(key_of, OF_RELEASE):
        found["properties"].pop(key)
        found["required"] = [other for other in found["required"] if other != key]
    # A chart that has this one inside shares these values with it.
    found["properties"]["global"] = {"type": "object"}
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return json.dumps({**head, **found}, indent=2, ensure_ascii=False) + "\n"


def _renamed(part: Any) -> Any:
    """Returns a schema with the chart's keys."""
    if isinstance(part, list):
        return [_renamed(inner) for inner in part]
    if not isinstance(part, dict):
        return part
    found = {
        key: _renamed(inner) for key, inner in part.items() if key not in ("title", "default", "required")
    }
    if "properties" in part:
        names = part["properties"]
        found["properties"] = {key_of(name): _renamed(inner) for name, inner in names.items()}
        found["required"] = [key_of(name) for name, inner in names.items() if not _may_lack(inner)]
    return found


def _may_lack(part: dict[str, Any]) -> bool:
    """Whether templates take nothing for what it stands for: null, or a list without items."""
    return part.get("type") == "array" or {"type": "null"} in part.get("anyOf", ())
