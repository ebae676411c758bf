"""Regions in /dev/shm that servers share with their processes; a server that is killed leaves its own."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path

PREFIX = "trtspec_"

_FOLDER = Path("/dev/shm")  # noqa: S108
_OURS = re.compile(rf"{PREFIX}(\d+)-(\d+)-(\d+)_")


def new_prefix() -> str:
    """Begins the names of one server's regions, and tells which process they are of."""
    return f"{PREFIX}{_namespace()}-{os.getpid()}-{_born(os.getpid())}_{uuid.uuid4().hex[:8]}_"


def remove_regions(prefix: str) -> None:
    for region in _FOLDER.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Those of this user whose process is gone; of another PID namespace none can be known."""
    for region in _FOLDER.glob(f"{PREFIX}*"):
        found = _OURS.match(region.name)
        if found is None or int(found[1]) != _namespace() or _born(int(found[2])) == int(found[3]):
            continue
        if region.stat().st_uid == os.getuid():
            region.unlink(missing_ok=True)


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _born(pid: int) -> int | None:
    """In ticks after the machine's start (proc_pid_stat(5)); None where there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
