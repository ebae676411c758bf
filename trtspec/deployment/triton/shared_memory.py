"""Removes regions in /dev/shm that killed servers have left; servers share them with their processes."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

from trtspec.base.locks import try_lock, unlock

PREFIX = "trtspec_"

_FOLDER = Path("/dev/shm")  # noqa: S108
_LOCK = "lock"
_LOCKS = re.compile(rf"({PREFIX}\d+_[0-9a-f]{{8}}_){_LOCK}")


class Regions:
    """The regions of one server, whose names begin with `prefix`, from `__init__` to `close`.

    A lock marks them as in use, also for processes of other PID namespaces: a restarted container of a pod
    finds the regions of the one before.
    """

    def __init__(self) -> None:
        self.prefix = f"{PREFIX}{os.getpid()}_{uuid.uuid4().hex[:8]}_"
        self._file = _FOLDER / f"{self.prefix}{_LOCK}"
        descriptor = try_lock(self._file)
        assert descriptor is not None, "nobody else has this name"
        self._lock = descriptor

    def remove(self) -> None:
        """Removes what a server has left; the next one of this process may follow."""
        _remove(self.prefix)

    def close(self) -> None:
        self.remove()
        unlock(self._lock, self._file)


def is_any_abandoned() -> bool:
    """Says whether a process of this user was killed that had regions, whose server may be ending."""
    with closing(_abandoned()) as found:
        for descriptor, _, _ in found:
            os.close(descriptor)
            return True
    return False


def remove_abandoned() -> None:
    """Removes the regions of this user that no process uses any more."""
    for descriptor, file, prefix in _abandoned():
        _remove(prefix)
        unlock(descriptor, file)


def _abandoned() -> Generator[tuple[int, Path, str], None, None]:
    """Yields locks whose processes are gone: a descriptor that holds it now, its file, and its prefix."""
    for file in _FOLDER.glob(f"{PREFIX}*{_LOCK}"):
        found = _LOCKS.fullmatch(file.name)
        try:
            descriptor = try_lock(file) if found and file.stat().st_uid == os.getuid() else None
        except FileNotFoundError:
            continue
        if found and descriptor is not None:
            yield descriptor, file, found[1]


def _remove(prefix: str) -> None:
    for region in _FOLDER.glob(f"{prefix}*"):
        if not region.name.endswith(f"_{_LOCK}"):
            region.unlink(missing_ok=True)
