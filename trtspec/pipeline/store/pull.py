"""Copies an entry from a store into a folder of this machine, and verifies every byte."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from trtspec.base.progress import Advance
from trtspec.base.threads import in_threads
from trtspec.pipeline.store.entry import Chunk, Entry
from trtspec.pipeline.store.store import THREADS, Store


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
