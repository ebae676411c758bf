"""SHA-256 of files, kept so that a file that has not changed is not read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from trtspec.base.atomic import write_atomically
from trtspec.base.progress import Advance, Progress, no_progress

CHUNK = 4 << 20
LARGE = 1 << 30


class FileDigests:
    """Keeps digests in a small file, by device, inode, size and modification time.

    Two hard links are one file. Files of a gigabyte or more, together, are read under `watch`.
    """

    def __init__(self, store: Path, watch: Progress) -> None:
        self._store, self._watch = store, watch
        self._known: dict[str, str] = _read(store)

    def of(self, file: Path) -> str:
        """Returns the SHA-256 of a file in hexadecimal."""
        return self.of_all([file], file.name)[file]

    def of_all(self, files: Sequence[Path], name: str) -> dict[Path, str]:
        """Returns the SHA-256 of each file; `name` tells who watches what they are."""
        keys = {file: _key(file) for file in files}
        unread = {file: key for file, (key, _) in keys.items() if key not in self._known}
        size = sum(keys[file][1] for file in unread)
        watch = self._watch if size >= LARGE else no_progress
        with watch(f"read {name}", size) as advance:
            for file, key in unread.items():
                self._known[key] = _sha256(file, advance)
        return {file: self._known[key] for file, (key, _) in keys.items()}

    def by_name(self, files: Iterable[Path], name: str, known: Mapping[str, str]) -> dict[str, str]:
        """Returns the digests of a model's files by their names; `known` are those that need no reading."""
        named = {file.name: file for file in files}
        read = self.of_all([file for each, file in named.items() if each not in known], name)
        return {each: known[each] if each in known else read[file] for each, file in named.items()}

    def of_tree(self, path: Path) -> dict[str, str]:
        """Returns the digests of a file or of all files in a folder, by paths that begin with its own name.

        There are none where `path` does not exist.
        """
        if not path.is_dir():
            return {path.name: self.of(path)} if path.exists() else {}
        # A server that has run leaves Python's compiled files, which no step has made.
        files = (file for file in path.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
        return {file.relative_to(path.parent).as_posix(): self.of(file) for file in sorted(files)}

    def save(self) -> None:
        write_atomically(self._store, json.dumps(self._known, indent=0))


def _key(file: Path) -> tuple[str, int]:
    """Returns what a file's digest is kept by, and its size in bytes."""
    stat = file.stat()
    return f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}", stat.st_size


def _read(store: Path) -> dict[str, str]:
    try:
        known = json.loads(store.read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _sha256(file: Path, advance: Advance) -> str:
    sha = hashlib.sha256()
    with file.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            sha.update(chunk)
            advance(len(chunk))
    return sha.hexdigest()
