"""The values of the Helm chart `charts/trtspec`, which is made of the functions that make manifests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from trtspec.kubernetes.values import Values

OF_RELEASE = ("name", "namespace", "version", "managed_by")
"""What a release of Helm has by itself: its name, its namespace, the version of the chart, who manages it."""


def chart_values(values: Values) -> dict[str, Any]:
    """Returns the chart's values, for a release of the deployment's name in its namespace."""
    return {key: content for key, content in plain(values).items() if key not in map(key_of, OF_RELEASE)}


def key_of(field: str) -> str:
    """Returns a field's key in the chart: `grace_s` is `graceSeconds` there."""
    first, *rest = re.sub("_s$", "_seconds", field).split("_")
    return first + "".join(word.capitalize() for word in rest)


def plain(part: Any) -> Any:
    """Returns a part of values with the chart's keys."""
    if isinstance(part, BaseModel):
        return {key_of(name): plain(getattr(part, name)) for name in type(part).model_fields}
    if isinstance(part, Mapping):
        return dict(part)
    if isinstance(part, Sequence) and not isinstance(part, str):
        return [plain(item) for item in part]
    return part
