"""Defines how a recipe bounds K by the number of requests that run at once."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema

_FORM = {"type": "object", "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 64}}


def check(value: object) -> dict[int, int]:
    """Returns a schedule; raises ValueError with problem and repair. Keys of YAML and JSON are texts."""
    pairs = value.items() if isinstance(value, dict) else ()
    found = {int(key): k for key, k in pairs if str(key).isdecimal() and type(k) is int and 0 <= k <= 64}
    if [*found] != sorted(found) or 1 not in found or len(found) < len(pairs) or not any(found.values()):
        problem = "maps numbers of requests, 1 first and then rising, to K of 0 to 64, and not always 0"
        raise ValueError(problem, "write for example {1: 4, 5: 2, 9: 0}")
    return found


Schedule = Annotated[dict[int, int], BeforeValidator(check), WithJsonSchema({**_FORM, "required": ["1"]})]
"""K by the least number of running requests that it holds for."""
