"""The file to which a server's output goes."""

from __future__ import annotations

from pathlib import Path

from trtspec.tail import last_bytes

# The bytes of which the last lines are taken.
_LAST = 1 << 16


def begin_log(log: Path) -> None:
    """Begins an empty log; an earlier deployment's is kept beside it, since it may tell of a crash."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    log.touch()


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Returns the end of a log, without Triton's tables."""
    lines = last_bytes(log, _LAST).splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]
