"""Writes and copies files and folders so that a crash or a power failure leaves them whole or absent.

A lock on a path keeps other processes out meanwhile: those of this machine, or of machines with a file system
in common.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.errors import UnavailableError


def copy_tree(source: Path, target: Path, *ignored: str) -> None:
    """Copies a folder to `target`, in a new folder if need be, without names of the patterns `ignored`.

    Raises the OSError of the first file that cannot be copied, such as ENOSPC, where `shutil.copytree` goes
    on and then raises an error without a number.
    """
    target.mkdir(parents=True)
    for entry in sorted(source.iterdir()):
        if any(entry.match(pattern) for pattern in ignored):
            continue
        if entry.is_dir():
            copy_tree(entry, target / entry.name, *ignored)
        else:
            shutil.copy2(entry, target / entry.name)
    shutil.copystat(source, target)


FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""The numbers of the OSError of a disk without room."""
PARTIAL, _REPLACED = ".partial", ".replaced"


def temporary(path: Path) -> Path:
    """The hidden sibling in which `path` is made. Its name never varies, so the next run finds a leftover."""
    return path.with_name(f".{path.name}{PARTIAL}")


def replaced_by(path: Path) -> Path:
    """The hidden sibling in which a folder is while a new one takes its place."""
    return path.with_name(f".{path.name}{_REPLACED}")


def publish(made: Path, path: Path) -> None:
    """Replaces `path` with `made`, which must be complete: syncs its content to the disk, then renames it."""
    for item in [made, *made.rglob("*")] if made.is_dir() else [made]:
        _sync(item)
    replaced = replaced_by(path)
    if path.is_dir():
        remove(replaced)
        path.rename(replaced)
    made.rename(path)
    _sync(path.parent)
    remove(replaced)


def write_atomically(path: Path, text: str) -> None:
    """Writes `text` as UTF-8, in a new folder if need be; an OSError leaves no half-written file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = temporary(path)
    try:
        made.write_text(text, encoding="utf-8")
        publish(made, path)
    except OSError:
        remove(made)
        raise


def remove(path: Path) -> None:
    """Removes a file, a link or a whole folder; does nothing if there is none."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_leftovers(path: Path) -> None:
    """Removes what a killed run that made `path` has left beside it, and nothing else."""
    remove(temporary(path))
    remove(replaced_by(path))


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


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
