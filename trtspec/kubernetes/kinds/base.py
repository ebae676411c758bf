"""What all kinds of objects have in common, and the one place that makes plain data of them.

A part of an object is a frozen dataclass whose fields are Kubernetes' keys, in Python's spelling:
`match_labels` is `matchLabels`. A field that is None is left out; one that is empty is written, since `{}`
and `[]` mean something in many places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar

# Keys with capitals where a word begins with none, or that Python reserves.
_KEYS = {"cluster_ip": "clusterIP", "downward_api": "downwardAPI", "from_": "from"}


@dataclass(frozen=True, slots=True)
class Meta:
    """The metadata of an object; without a namespace it goes to that of the client."""

    name: str | None = None
    namespace: str | None = None
    labels: Mapping[str, str] | None = None
    annotations: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Object:
    """An object of the API; a kind of it is a subclass."""

    api_version: ClassVar[str]
    kind: ClassVar[str]

    metadata: Meta


@dataclass(frozen=True, slots=True)
class Selector:
    """The pods that have all of these labels."""

    match_labels: Mapping[str, str]


def document(thing: Object) -> dict[str, Any]:
    """Returns an object as plain data: dicts, lists, text and numbers."""
    return {"apiVersion": thing.api_version, "kind": thing.kind, **plain(thing)}


def plain(value: Any) -> Any:
    """Returns a part as plain data."""
    if is_dataclass(value):
        found = {field.name: getattr(value, field.name) for field in fields(value)}
        return {_key(name): plain(part) for name, part in found.items() if part is not None}
    if isinstance(value, Mapping):
        return {key: plain(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [plain(part) for part in value]
    return value


def _key(name: str) -> str:
    first, *rest = name.split("_")
    return _KEYS.get(name) or first + "".join(word.capitalize() for word in rest)
