"""The lock of a build directory, which allows one build at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.locks import try_lock

FILE = ".trtspec/lock"


@contextmanager
def only_build(build: Path) -> Iterator[None]:
    """Holds the lock of a build directory; raises UnavailableError if another process holds it.

    The kernel frees the lock of a process that dies. The descriptor is inheritable: a builder that outlives a
    killed trtspec keeps the lock until it ends. So the file stays, with the process in it.
    """
    file = build / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor = try_lock(file)
    if descriptor is None:
        owner = file.read_text(errors="replace").strip()
        problem = f"another build is running here (process {owner})"
        raise UnavailableError(build, problem, "wait for it to end, or choose another --output")
    try:
        os.set_inheritable(descriptor, True)
        os.truncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(descriptor)
