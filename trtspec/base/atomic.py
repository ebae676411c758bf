"""Writes and copies files and folders so that a crash or a power failure leaves them whole or absent."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path


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
