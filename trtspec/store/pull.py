"""Copies an entry from a store into a folder of this machine, and verifies every byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from trtspec.progress import Advance
from trtspec.store.entry import Chunk, Entry
from trtspec.store.store import THREADS, Store
from trtspec.threads import in_threads


class _Piece(NamedTuple):
    chunk: Chunk
    file: Path
    offset: int


def pull(store: Store, entry: Entry, folder: Path, advance: Advance) -> None:
    """Makes `folder`, which must not exist, with the files of an entry.

    `advance` is called with the bytes of each chunk. Raises StoreError for a chunk that is corrupted or gone;
    the folder is then incomplete.
    """
    for name in ("", *entry.folders):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for name, file in entry.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        with (folder / name).open("xb") as stream:
            stream.truncate(file.size)

    def download(piece: _Piece) -> int:
        content = store.read_chunk(piece.chunk)
        with piece.file.open("r+b") as stream:
            stream.seek(piece.offset)
            stream.write(content)
        return len(content)

    in_threads(download, _pieces(entry, folder), advance, THREADS)


def _pieces(entry: Entry, folder: Path) -> Iterator[_Piece]:
    for name, file in entry.files.items():
        offset = 0
        for chunk in file.chunks:
            yield _Piece(chunk, folder / name, offset)
            offset += chunk.size
