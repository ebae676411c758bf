"""Writes a safetensors file tensor by tensor, in memory that does not grow with the file.

The library's own writer wants every tensor of the file at once; `trtspec.checkpoint.tensors` has the format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trtspec.checkpoint.tensors import ITEM_SIZE

Chunk = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written: dtype by its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_SIZE[self.dtype]


def write_safetensors(file: Path, entries: list[Entry], chunks: Iterable[Chunk]) -> Iterator[int]:
    """Writes the entries' data, which `chunks` yields in their order; yields the bytes of each chunk written.

    The file is on the disk, not only in the cache, when the iteration ends.
    """
    with file.open("wb") as stream:
        stream.write(_header(entries))
        for chunk in chunks:
            stream.write(chunk)
            yield len(chunk)
        stream.flush()
        os.fsync(stream.fileno())


def _header(entries: list[Entry]) -> bytes:
    header, start = {}, 0
    for entry in entries:
        offsets = [start, start + entry.size]
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": offsets}
        start += entry.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data must start at a multiple of eight
    return len(text).to_bytes(8, "little") + text
