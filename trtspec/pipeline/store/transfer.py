"""Copies folders into a store and out of it; each copy can be resumed, and every byte is verified."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from trtspec.base.errors import StoreError
from trtspec.base.progress import Advance
from trtspec.base.threads import in_threads
from trtspec.pipeline.store.store import PRUNING, PUSHING, THREADS, Chunk, Entry, Store, StoredFile, to_bytes

CHUNK = 32 << 20  # bytes; eight chunks are in memory at once
LIMIT = timedelta(hours=1)  # who has not renewed a mark for so long was killed
_POLL_S = 2.0
_RENEWAL_S = 300.0


def describe(
    folder: Path, paths: Iterable[str], advance: Advance
) -> tuple[dict[str, StoredFile], tuple[str, ...]]:
    """The digests of every file at or below these paths of a folder, and the folders that are empty.

    Both go by their path in `folder`. `advance` is called with the bytes of each file.
    """
    items = sorted({item for path in paths for item in (folder / path, *(folder / path).rglob("*"))})
    items = [item for item in items if "__pycache__" not in item.parts]
    files = [item for item in items if item.is_file()]
    found: dict[str, StoredFile] = {}

    def read(file: Path) -> int:
        stored = found[file.relative_to(folder).as_posix()] = _describe(file)
        return stored.size

    in_threads(read, files, advance)
    empty = (item for item in items if item.is_dir() and not any(item.iterdir()))
    return dict(sorted(found.items())), tuple(item.relative_to(folder).as_posix() for item in empty)


def _describe(file: Path) -> StoredFile:
    whole, chunks = sha256(), []
    with file.open("rb") as stream:
        while content := stream.read(CHUNK):
            whole.update(content)
            chunks.append(Chunk(sha256(content).hexdigest(), len(content)))
    return StoredFile(whole.hexdigest(), tuple(chunks))


def push(store: Store, entry: Entry, folder: Path, advance: Advance) -> None:
    """Writes what the store lacks of these files, and then the entry; it can be killed and called again.

    Raises StoreError, also for a file that differs from the entry by now, and if it paused so long that a
    prune has taken it for dead.
    """
    with _announced(store, entry, advance) as mark:

        def write(piece: FileChunk) -> int:
            mark.renew()
            chunk = piece.chunk
            if store.files.size(chunk.name) != chunk.size:
                content = piece.read()
                if sha256(content).hexdigest() != chunk.sha256:
                    raise StoreError(piece.file, "changed during the push", "run the same command again")
                store.files.write(chunk.name, content)
            return chunk.size

        # A chunk that occurs twice is written once.
        pieces = {piece.chunk: piece for piece in pieces_of(entry, folder)}
        in_threads(write, pieces.values(), advance, THREADS)
        mark.check()
        store.files.write(entry.document, to_bytes(entry))


class _Mark:
    """The mark of a running push, which keeps the chunks of its entry from being pruned."""

    def __init__(self, store: Store, entry: Entry) -> None:
        self.name = f"{PUSHING}/{entry.digest}.json"
        self._store, self._entry = store, entry
        self.write()

    def write(self) -> None:
        self._written = time.monotonic()
        self._store.files.write(self.name, to_bytes(self._entry))

    def renew(self) -> None:
        """Writes it again if it is some minutes old; raises StoreError as `check` does."""
        if time.monotonic() - self._written > _RENEWAL_S:
            self.check()
            self.write()

    def check(self) -> None:
        """Raises StoreError if the mark is gone, unless another push of this entry has ended."""
        files = self._store.files
        if files.size(self.name) is None and files.size(self._entry.document) is None:
            problem = f"the push of {self._entry.name} paused for so long that a prune took it for dead"
            raise StoreError(str(self._store), problem, "run the same command again")


@contextmanager
def _announced(store: Store, entry: Entry, advance: Advance) -> Iterator[_Mark]:
    """Keeps the chunks of an entry from being pruned until the entry itself is written.

    A prune writes its mark and then looks for marks of pushes; a push writes its mark and then looks for
    marks of prunes. So at least one of the two sees the other. A push that is killed leaves its mark, which
    keeps its chunks for a while.
    """
    mark = _Mark(store, entry)
    while living(store, PRUNING):
        advance(0, "waits for the end of a prune")
        time.sleep(_POLL_S)
    yield mark
    store.files.remove([mark.name])


def living(store: Store, folder: str) -> list[str]:
    """The marks in a folder of those that were not killed, as far as their age tells."""
    now = datetime.now(timezone.utc)
    marks = store.files.find(folder).items()
    return [name for name, mark in marks if mark.modified is None or now - mark.modified < LIMIT]


class FileChunk(NamedTuple):
    """A chunk's place in a file of a folder."""

    chunk: Chunk
    file: Path
    offset: int

    def is_whole(self) -> bool:
        """Says whether the file has the chunk there."""
        return sha256(self.read()).hexdigest() == self.chunk.sha256

    def read(self) -> bytes:
        """Returns the file's bytes there."""
        with self.file.open("rb") as stream:
            stream.seek(self.offset)
            return stream.read(self.chunk.size)


def pull(store: Store, entry: Entry, folder: Path, advance: Advance) -> None:
    """Makes `folder` with the files of an entry, or goes on with what a `pull` of the entry left there.

    `advance` is called with the bytes of each chunk. Raises StoreError for a chunk that is corrupted or gone;
    the folder is then incomplete.
    """
    for name in ("", *entry.folders):
        (folder / name).mkdir(parents=True, exist_ok=True)
    begun = set[Path]()
    for name, file in entry.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            begun.add(path)
        with path.open("ab") as stream:
            stream.truncate(file.size)

    def download(piece: FileChunk) -> int:
        if piece.file in begun and piece.is_whole():
            return piece.chunk.size
        content = store.read_chunk(piece.chunk)
        with piece.file.open("r+b") as stream:
            stream.seek(piece.offset)
            stream.write(content)
        return len(content)

    in_threads(download, pieces_of(entry, folder), advance, THREADS)


def pieces_of(entry: Entry, folder: Path) -> Iterator[FileChunk]:
    """Yields every chunk of an entry with its place in a folder."""
    for name, file in entry.files.items():
        offset = 0
        for chunk in file.chunks:
            yield FileChunk(chunk, folder / name, offset)
            offset += chunk.size
