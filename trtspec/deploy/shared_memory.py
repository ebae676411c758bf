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
    """Returns how the names of one server's regions begin, which tells the process that they belong to."""
    return f"{PREFIX}{_namespace()}-{os.getpid()}-{_born(os.getpid())}_{uuid.uuid4().hex[:8]}_"


def remove_regions(prefix: str) -> None:
    for region in _FOLDER.glob(f"{prefix}*"):
        region.unlink(missing_ok=True)


def remove_abandoned() -> None:
    """Removes the regions of this user whose process is gone.

    Those of another PID namespace stay, since its processes cannot be seen.
    """
    for region in _FOLDER.glob(f"{PREFIX}*"):
        found = _OURS.match(region.name)
        if found is None or int(found[1]) != _namespace() or _born(int(found[2])) == int(found[3]):
            continue
        if region.stat().st_uid == os.getuid():
            region.unlink(missing_ok=True)


def _namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _born(pid: int) -> int | None:
    """Returns when a process began, in ticks since the machine's start (proc_pid_stat(5)); None if gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None
