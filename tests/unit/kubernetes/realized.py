"""Samples of the chart's writer with values in place of their marks."""

from __future__ import annotations

from typing import Any, TypeVar
from zlib import crc32

from pydantic import BaseModel

from charts.writer.marks import Number

P = TypeVar("P")


def realized(part: P) -> P:
    """A part of a sample whose marks are values, each another one."""
    made: Any = part
    if isinstance(part, BaseModel):
        fields = {name: realized(getattr(part, name)) for name in type(part).model_fields}
        made = type(part).model_construct(**fields)
    elif isinstance(part, dict):
        made = {realized(key): realized(value) for key, value in part.items()}
    elif isinstance(part, list | tuple):
        made = type(part)(realized(item) for item in part)
    elif isinstance(part, Number):
        made = crc32(str(part).encode()) % 10**8
        made = made / 10 if part.form == "%v" else made
    elif isinstance(part, str) and not part.isprintable():
        made = f'v{crc32(part.encode())}: "{{{{ x }}}}"'
    return made  # type: ignore[no-any-return]
