"""The file to which a server's output goes."""

from __future__ import annotations

from pathlib import Path

from trtspec.base.tail import last_bytes

_OF_MEASUREMENTS = Path(".trtspec", "served")
# The bytes of which the last lines are taken.
_LAST = 1 << 16


def begin_log(log: Path) -> None:
    """Begins an empty log; an earlier deployment's is kept beside it, since it may tell of a crash."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    log.touch()


def logs_of_measurement(build: Path) -> Path:
    """Returns the folder, which is made, for the logs of a server that is only there to be measured.

    A deployment of the same build may run beside it, and writes its own into the build.
    """
    folder = build / _OF_MEASUREMENTS
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Returns the end of a log, without Triton's tables."""
    lines = last_bytes(log, _LAST).splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]
