"""Writes the data of a safetensors file in any order, with memory that does not grow with the file.

The library's own writer needs every tensor of the file at once. `trtspec.models.source` describes the
format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

from trtspec.models.source import ITEM_SIZE


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor that is to be written."""

    name: str
    dtype: str
    """The safetensors name."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        return prod(self.shape) * ITEM_SIZE[self.dtype]


class SafetensorsFile:
    """A new file with its header and at its full length, which is zero until it is written.

    `starts` says at which byte of the file each tensor begins, and `metadata` is what the header says of the
    file as a whole. Threads may share it. Raises FileExistsError.
    """

    def __init__(
        self, file: Path, entries: Iterable[TensorEntry], metadata: Mapping[str, str] | None = None
    ) -> None:
        header, offsets, size = _header(entries, metadata)
        self.starts: Mapping[str, int] = {name: len(header) + offset for name, offset in offsets.items()}
        self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        os.truncate(self._descriptor, len(header) + size)
        self.write(header, 0)

    def write(self, data: bytes | memoryview, position: int) -> None:
        """Writes all of `data` at byte `position` of the file."""
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


def _header(
    entries: Iterable[TensorEntry], metadata: Mapping[str, str] | None
) -> tuple[bytes, dict[str, int], int]:
    """Returns the header, the offset of each tensor in the data, and the size of the data, all in bytes."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    offsets, end = dict[str, int](), 0
    for entry in entries:
        start, end = end, end + entry.size
        header[entry.name] = {"dtype": entry.dtype, "shape": list(entry.shape), "data_offsets": [start, end]}
        offsets[entry.name] = start
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data must start at a multiple of eight
    return len(text).to_bytes(8, "little") + text, offsets, end
