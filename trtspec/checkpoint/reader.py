"""Reads rows of tensors from files that stay open.

It does not use memory maps: mapped pages count as the process's memory, and if another process truncates a
mapped file, this one ends with a signal instead of an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType

import numpy as np

from trtspec.base.errors import TensorError
from trtspec.checkpoint.cast import NUMPY, Bits, is_finite
from trtspec.models.source import DOWNLOAD_AGAIN, ITEM_SIZE, Tensor, open_file

NOT_FINITE = f"{DOWNLOAD_AGAIN}; if that one is the same, the model itself is broken"


class Reader:
    """Open safetensors files; threads may share it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._streams = {file: open_file(file) for file in sorted(files)}

    def rows(self, tensor: Tensor, rows: range) -> Bits:
        """The rows as an array [rows, columns], or [rows, 1] for a tensor of one dimension.

        Its dtype is that of `cast.NUMPY`. Raises TensorError if the file ends before them.
        """
        width = tensor.elements // tensor.shape[0]
        row_size = width * ITEM_SIZE[tensor.dtype]
        data = self.read(tensor, rows.start * row_size, len(rows) * row_size)
        return np.frombuffer(data, NUMPY[tensor.dtype]).reshape(len(rows), width)

    def finite_rows(self, tensor: Tensor, rows: range) -> Bits:
        """The same rows; raises TensorError also for a number that is not finite."""
        found = self.rows(tensor, rows)
        if not is_finite(found, tensor.dtype):
            raise TensorError(tensor.file, f"{tensor.name}: holds NaN or infinity", NOT_FINITE)
        return found

    def read(self, tensor: Tensor, start: int, size: int) -> bytes:
        """So many bytes of a tensor from its byte `start` on; raises TensorError if the file ends before."""
        data = os.pread(self._streams[tensor.file].fileno(), size, tensor.start + start)
        if len(data) < size:
            problem = f"{tensor.name}: the file was cut off while it was read"
            raise TensorError(tensor.file, problem, DOWNLOAD_AGAIN)
        return data

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for stream in self._streams.values():
            stream.close()


def chunks(rows: range, tensor: Tensor, size: int) -> Iterator[range]:
    """Yields the rows in ranges of about `size` bytes, or of one row if that is larger."""
    step = max(size * tensor.shape[0] // (tensor.end - tensor.start), 1)
    for first in range(rows.start, rows.stop, step):
        yield range(first, min(first + step, rows.stop))
