"""SHA-256 of files, kept so that a file that has not changed is not read again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec.plan.atomic import write_atomically

CHUNK = 4 << 20


class FileDigests:
    """Digests by device, inode, size and modification time, in a small file; two hard links are one file."""

    def __init__(self, store: Path) -> None:
        self._store = store
        try:
            self._known: dict[str, str] = json.loads(store.read_text())
        except (FileNotFoundError, ValueError):
            self._known = {}

    def of(self, file: Path, advance: Callable[[int], None] = lambda _: None) -> str:
        """The digest in hexadecimal; `advance` hears of the bytes read for it."""
        stat = file.stat()
        key = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}"
        if key not in self._known:
            sha = hashlib.sha256()
            with file.open("rb") as stream:
                while chunk := stream.read(CHUNK):
                    sha.update(chunk)
                    advance(len(chunk))
            self._known[key] = sha.hexdigest()
        return self._known[key]

    def of_tree(self, path: Path) -> dict[str, str]:
        """The digests of a file, or of all below a folder, by paths that begin with its own name."""
        if not path.is_dir():
            return {path.name: self.of(path)} if path.exists() else {}
        # Python leaves compiled files where a server has run.
        files = (file for file in path.rglob("*") if file.is_file() and file.parent.name != "__pycache__")
        return {file.relative_to(path.parent).as_posix(): self.of(file) for file in sorted(files)}

    def save(self) -> None:
        write_atomically(self._store, json.dumps(self._known, indent=0))


def digest_of(value: Any) -> str:
    """The SHA-256 of plain data; equal values have equal digests, on every machine."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()
