"""Reads and writes the file of a roll-out: its step, its beginning, and the counts before it."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from trtspec.base.atomic import write_atomically
from trtspec.base.errors import UnavailableError
from trtspec.serving.errors import RolloutError
from trtspec.serving.rollout.state import VERSION, RolloutState, parse


@dataclass(frozen=True, slots=True)
class RolloutRecord:
    """A state, and what the server had counted when it began."""

    state: RolloutState
    since: str | None = None
    """The time from which it stands so, in ISO 8601."""
    counted: Mapping[str, float] | None = field(default_factory=dict)
    """The server's counters at that time, by the names of `evidence.py`; None where the server could not be
    asked.
    """


def now() -> str:
    """Returns the present time in ISO 8601, to the second."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def read(path: Path) -> RolloutRecord | None:
    """Returns the file's record; None without a file. Raises `UnavailableError` for a broken file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    try:
        state = parse(text)
    except RolloutError as error:
        raise UnavailableError(path, str(error), "trtspec rollout off writes it again") from error
    said = json.loads(text)
    since, counted = said.get("since"), said.get("counted", {})
    numbers = counted.items() if isinstance(counted, dict) else ()
    known = {str(name): float(value) for name, value in numbers if isinstance(value, (int, float))}
    return RolloutRecord(state, since if isinstance(since, str) else None, None if counted is None else known)


def write(path: Path, standing: RolloutRecord) -> None:
    """Replaces the file atomically, even if this process is killed."""
    said = {
        "version": VERSION,
        "mode": standing.state.mode,
        "share": standing.state.share,
        "since": standing.since,
        "counted": None if standing.counted is None else dict(standing.counted),
    }
    write_atomically(path, json.dumps(said, indent=2) + "\n")


@contextmanager
def locked(build: Path) -> Iterator[None]:
    """Lets one process at a time move the roll-out of a build; the kernel frees the lock when that process
    ends."""
    descriptor = os.open(build, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
