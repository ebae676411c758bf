"""Describes the builder of an engine, for those who wait for its lease."""

from __future__ import annotations

import json
import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from typing import Any

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Builder:
    """The content of a lease."""

    what: str
    expiry_s: float
    """A lease that is not renewed for so many seconds is nobody's."""
    host: str = field(default_factory=socket.gethostname)
    process: int = field(default_factory=os.getpid)
    since: str = field(default_factory=lambda: datetime.now(timezone.utc).isoformat(timespec="seconds"))
    """The time in ISO 8601 by the builder's own clock, for people."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    note: str = ""
    """The work that is done now."""
    beat: int = 0
    """Each renewal has another number here."""
    released: bool = False
    """True if the builder gave up."""

    def __str__(self) -> str:
        doing = f" ({self.note})" if self.note else ""
        return f"{self.host}, process {self.process}, builds it since {self.since}{doing}"


def to_bytes(builder: Builder) -> bytes:
    return json.dumps({"schema": SCHEMA, **asdict(builder)}, sort_keys=True).encode()


def from_bytes(content: bytes) -> Builder | None:
    """Reads a lease; None if it is half-written, or of another version of trtspec."""
    try:
        values: Any = json.loads(content)
        if not isinstance(values, Mapping) or values["schema"] != SCHEMA:
            return None
        builder = Builder(**{name: value for name, value in values.items() if name != "schema"})
    except (KeyError, RecursionError, TypeError, ValueError):
        return None
    texts = (builder.what, builder.host, builder.since, builder.id, builder.note)
    is_sound = all(isinstance(text, str) for text in texts) and isinstance(builder.expiry_s, (int, float))
    return builder if is_sound else None
