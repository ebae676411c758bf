"""An entry's folder on a disk that several pods may share: pulled once, and verified by all who use it."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.files import (
    FULL,
    PARTIAL,
    locked,
    publish,
    remove,
    replaced_by,
    temporary,
    try_lock,
    unlock,
    write_atomically,
)
from trtspec.base.progress import Progress
from trtspec.base.threads import in_threads
from trtspec.base.units import lacking
from trtspec.pipeline.store.store import THREADS, Entry, Store, from_bytes, to_bytes
from trtspec.pipeline.store.transfer import FileChunk, pieces_of, pull

_READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def keep(
    store: Store,
    entry: Entry,
    folder: Path,
    watch: Progress,
    say: Callable[[str], None],
    *,
    remembers: bool = True,
) -> None:
    """Makes `folder` hold the entry, every byte of it verified; what is there already is not pulled again.

    One process at a time works on a folder, and only complete files appear in it. A killed pull of the entry
    is continued, and the rest of another entry's pull is removed. With `remembers` the entry's document is
    written beside the folder, for `remembered`. `say` gets messages for people. Raises StoreError, and
    UnavailableError if there is no room, or if the folder is read-only and does not hold the entry.
    """
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(_lock_of(folder), lambda: say(f"waiting for another process that pulls {folder}")):
            _make(store, entry, folder, watch, say)
            if remembers:
                # A folder of a disk that is full by now is served without it.
                with suppress(OSError):
                    # A pull that was killed may have made the folder without it.
                    if remembered(folder, entry.digest) is None:
                        write_atomically(_document_of(folder), to_bytes(entry).decode())
    except OSError as error:
        if error.errno not in _READ_ONLY:
            raise
        if problem := find_problem(entry, folder, watch):
            said = f"{problem}, and this folder cannot be written: {error.strerror}"
            repair = f"let user {os.getuid()} write to {folder.parent}"
            raise UnavailableError(folder, said, repair) from None


def remembered(folder: Path, digest: str) -> Entry | None:
    """Returns the entry with this digest if `keep` has put it into `folder`, and None otherwise.

    So a server can start again while its store cannot be reached, or has pruned the entry.
    """
    try:
        content = _document_of(folder).read_bytes()
        return from_bytes(content) if sha256(content).hexdigest() == digest else None
    except (OSError, ValueError):
        return None


def find_problem(entry: Entry, folder: Path, watch: Progress) -> str | None:
    """Reads every byte of a folder; returns how it differs from the entry, None if it does not."""
    if not folder.is_dir():
        return "does not exist"
    found = {str(path.relative_to(folder)): path for path in folder.rglob("*") if not path.is_dir()}
    for name in sorted(found.keys() ^ entry.files.keys()):
        return f"has {name}, which is not in the entry" if name in found else f"lacks {name}"
    for name, file in entry.files.items():
        if found[name].is_symlink() or found[name].stat().st_size != file.size:
            return f"has another {name}"
    damaged = set[str]()

    def read(piece: FileChunk) -> int:
        if not piece.is_whole():
            damaged.add(str(piece.file.relative_to(folder)))
        return piece.chunk.size

    with watch(f"verify {folder}", entry.size) as advance:
        in_threads(read, pieces_of(entry, folder), advance, THREADS)
    return f"has a damaged {min(damaged)}" if damaged else None


def _make(store: Store, entry: Entry, folder: Path, watch: Progress, say: Callable[[str], None]) -> None:
    _remove_leftovers(folder)
    if folder.exists():
        problem = find_problem(entry, folder, watch)
        if problem is None:
            return
        say(f"{folder} {problem}; it is pulled again")
    made = temporary(folder)
    try:
        there = sum(path.stat().st_blocks * 512 for path in made.rglob("*") if path.is_file())
        if entry.size - there > shutil.disk_usage(made.parent).free:
            raise _no_room(entry, folder)
        with watch(f"pull {entry.name}", entry.size) as advance:
            pull(store, entry, made, advance)
        publish(made, folder)
    except OSError as error:
        if error.errno not in FULL:
            raise
        # The disk may be the node's, which others need.
        remove(made)
        raise _no_room(entry, folder) from None


def _no_room(entry: Entry, folder: Path) -> UnavailableError:
    free = shutil.disk_usage(folder.parent).free
    problem = f"{entry.name} needs {lacking(entry.size, free)}"
    others = sorted(path.name for path in folder.parent.iterdir() if path.is_dir() and path.name[0] != ".")
    unused = f", or remove those of {', '.join(others)} that no pod serves any more" if others else ""
    return UnavailableError(folder.parent, problem, f"give the volume more room{unused}")


def _document_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.json")


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _remove_leftovers(folder: Path) -> None:
    """Removes what killed pulls have left, but for the one of this folder, which is locked.

    A pull that was killed has left its lock too. Without one a folder of such a name is somebody else's.
    """
    remove(replaced_by(folder))
    for left in folder.parent.glob(f".*{PARTIAL}"):
        theirs = left.with_name(left.name[1:].removesuffix(PARTIAL))
        lock = _lock_of(theirs)
        # A document that is being written is a file, and belongs to the lock of its folder.
        if theirs == folder or not left.is_dir() or not lock.is_file():
            continue
        held = try_lock(lock)
        if held is not None:
            remove(left)
            unlock(held, lock)
