"""The lock of a build directory, which allows one build at a time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.errors import UnavailableError

FILE = ".trtspec/lock"


@contextmanager
def locked(build: Path) -> Iterator[None]:
    """Holds the lock of a build directory; raises UnavailableError if another process holds it.

    The kernel frees the lock of a process that dies. The descriptor is inheritable: a builder that outlives a
    killed trtspec keeps the lock until it ends.
    """
    (build / FILE).parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(build / FILE, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(descriptor, 20).decode(errors="replace").strip()
            problem = f"another build is at work here (process {owner})"
            raise UnavailableError(
                build, problem, "wait for it to end, or choose another --output"
            ) from error
        os.set_inheritable(descriptor, True)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
