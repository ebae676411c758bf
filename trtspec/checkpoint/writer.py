"""Writes a safetensors file at any place of it, in memory that does not grow with the file.

The library's own writer wants every tensor of the file at once; `trtspec.models.tensors` has the format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType

from trtspec.models.tensors import ITEM_SIZE


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor to be written: dtype by its safetensors name."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_SIZE[self.dtype]


class SafetensorsFile:
    """A new file of its whole length, header written; what is not written is zero. Threads may share it.

    `starts` says at which byte of the file each tensor begins.
    """

    def __init__(self, file: Path, entries: Iterable[Entry]) -> None:
        header, offsets, size = _header(entries)
        self.starts: Mapping[str, int] = {name: len(header) + offset for name, offset in offsets.items()}
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.truncate(self._descriptor, len(header) + size)
        self.write(header, 0)

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Writes all of the data from this byte of the file on."""
        left = memoryview(data).cast("B")
        while left:
            written = os.pwrite(self._descriptor, left, position)
            left, position = left[written:], position + written

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self._descriptor)


def _header(entries: Iterable[Entry]) -> tuple[bytes, dict[str, int], int]:
    """The header, where each tensor begins in the data, and the size of the data."""
    header, offsets, end = {}, {}, 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
        offsets[entry.name] = start
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data must start at a multiple of eight
    return len(text).to_bytes(8, "little") + text, offsets, end
