"""Locks that processes of one machine, or of machines with a file system in common, take on a path."""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.errors import UnavailableError

_AGAIN_S = 0.2
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def try_lock(file: Path) -> int | None:
    """Returns a descriptor that holds the lock, None if another process does; the file is made if need be.

    The lock ends with the descriptor, at the latest with this process, containers and PID namespaces
    notwithstanding. Raises `UnavailableError` on a file system without locks, and `OSError`.
    """
    while True:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as error:
            os.close(descriptor)
            if error.errno == errno.ESTALE:
                # NFS: another machine has removed it since.
                continue
            if error.errno in _NO_LOCKS:
                problem, repair = (
                    "its file system has no locks (flock)",
                    "use another disk, or mount it with locks",
                )
                raise UnavailableError(file.parent, problem, repair) from None
            raise
        if _is(descriptor, file):
            return descriptor
        # It was removed by who held it before.
        os.close(descriptor)


def unlock(descriptor: int, file: Path) -> None:
    """Frees a lock, and removes its file."""
    if _is(descriptor, file):
        file.unlink()
    os.close(descriptor)


@contextmanager
def locked(file: Path, wait: Callable[[], None]) -> Iterator[None]:
    """Holds a lock during the block, once it is free; `wait` is called once if it is not yet."""
    descriptor = try_lock(file)
    if descriptor is None:
        wait()
    while descriptor is None:
        time.sleep(_AGAIN_S)
        descriptor = try_lock(file)
    try:
        yield
    finally:
        unlock(descriptor, file)


def _is(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):
            return False
        raise
