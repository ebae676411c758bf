"""Reads the numbers of tensors, converts them between dtypes, and writes them to safetensors files.

Dtypes have their safetensors names. numpy lacks bfloat16 and FP8: an array of BF16, the upper half of a
float32, holds its bits as uint16, and one of F8_E4M3 holds them as uint8.

Neither reading nor writing takes memory that grows with a file. The library's own writer needs every tensor
of a file at once. Memory maps are not used: mapped pages count as the process's memory, and if another
process truncates a mapped file, this one ends with a signal instead of an error. `trtspec.models.source`
describes the format.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trtspec.base.errors import TensorError
from trtspec.models.source import DOWNLOAD_AGAIN, ITEM_SIZE, Tensor, open_file

Bits = NDArray[Any]
Caster = Callable[[Bits], Bits]

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
FP8, FP8_MAX = "F8_E4M3", 448.0
NUMPY: dict[str, Any] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", FP8: "u1", "I64": "<i8"}

# The bits of infinity or, without one, of NaN. Without their signs, those of a number that is not finite are
# as large or larger.
_NOT_FINITE = {"F32": 0x7F80_0000, "F16": 0x7C00, "BF16": 0x7F80, FP8: 0x7F}


def is_finite(array: Bits, dtype: str) -> bool:
    """Says whether all numbers of the array are finite. It makes no copy, so it takes little time."""
    if dtype not in _NOT_FINITE:
        return True
    size, least = array.itemsize, _NOT_FINITE[dtype]
    sign = 1 << (8 * size - 1)
    # Read as signed integers, the largest is positive; as unsigned ones, it is negative.
    return bool(array.view(f"<i{size}").max() < least and array.view(f"<u{size}").max() < sign | least)


def caster(source: str, target: str, shift: float = 0.0) -> Caster:
    """Returns a function that converts an array of any shape, rounding to nearest, ties to even.

    It adds `shift` to each number in float32, before it rounds. It raises OverflowError if a finite number is
    too large for the target.
    """
    if source == target and not shift:
        return lambda array: array

    def cast(array: Bits) -> Bits:
        wide = _widened(array, source)
        if shift:  # Zero would turn -0.0 into 0.0.
            wide = wide + np.float32(shift)
        with np.errstate(over="ignore"):
            narrow = _to_bfloat16(wide) if target == "BF16" else wide.astype(NUMPY[target])
        if np.any(_infinite(narrow, target) & np.isfinite(wide)):
            raise OverflowError(float(np.abs(wide[np.isfinite(wide)]).max()))
        return narrow

    return cast


def quantizer(source: str, scale: float, stored_scale: float = 1.0) -> Caster:
    """Returns a function that makes E4M3 numbers of `array * stored_scale / scale`, as uint8 of its shape.

    As in ModelOpt, float32 is divided by float32, and the quotient rounded to nearest, ties to even. Numbers
    beyond `FP8_MAX`, the largest of E4M3, become this.
    """
    factor, divisor = np.float32(stored_scale), np.float32(scale)

    def quantize(array: Bits) -> Bits:
        with np.errstate(over="ignore", invalid="ignore"):
            return _to_fp8(_widened(array, source) * factor / divisor)

    if source == "F32":
        return quantize
    # There are so few numbers of 8 or 16 bits that each is quantized once, into a table.
    size = 8 * np.dtype(NUMPY[source]).itemsize
    table = quantize(np.arange(2**size, dtype=f"<u{size // 8}").view(NUMPY[source]))
    return lambda array: table.take(array.view(f"<u{size // 8}"))


def _widened(array: Bits, source: str) -> NDArray[np.float32]:
    if source == "BF16":
        return (array.astype("<u4") << 16).view("<f4")
    if source == FP8:
        return _FP8_NUMBERS.take(array)
    return array.astype("<f4")


def _to_bfloat16(wide: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = wide.view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding could carry a NaN's payload into the sign: keep its upper half, and the bit that makes it
    # quiet.
    return np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded).astype("<u2")


def _to_fp8(wide: NDArray[np.float32]) -> NDArray[np.uint8]:
    """Rounds to the bits of E4M3: sign, four of exponent with bias 7, three of mantissa.

    There is no infinity, and a NaN has all seven of the lower bits set.
    """
    sign: NDArray[np.uint8] = (wide.view("<u4") >> 24 & 0x80).astype(np.uint8)
    size = np.minimum(np.abs(wide), np.float32(FP8_MAX))
    bits = size.view("<u4")
    normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - (120 << 3)
    # Below 2**-6 the numbers are multiples of 2**-9, which is the last place of a float32 near 2**14.
    small = (size + np.float32(2**14)).view("<u4") & 0x3F
    found = np.where(size < np.float32(2**-6), small, normal)
    return np.where(np.isnan(wide), np.uint32(0x7F), found).astype(np.uint8) | sign


def _from_fp8() -> NDArray[np.float32]:
    bits = np.arange(256)
    exponent, mantissa = (bits >> 3) & 15, bits & 7
    size = np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))
    size[(bits & 0x7F) == 0x7F] = np.nan
    return np.where(bits < 128, size, -size).astype("<f4")


_FP8_NUMBERS = _from_fp8()


def _infinite(array: Bits, dtype: str) -> Any:
    return (array & 0x7FFF) == 0x7F80 if dtype == "BF16" else np.isinf(array)


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


NOT_FINITE = f"{DOWNLOAD_AGAIN}; if that one is the same, the model itself is broken"


class Reader:
    """Open safetensors files; threads may share it."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._streams = {file: open_file(file) for file in sorted(files)}

    def rows(self, tensor: Tensor, rows: range) -> Bits:
        """The rows as an array [rows, columns], or [rows, 1] for a tensor of one dimension.

        Its dtype is that of `NUMPY`. Raises TensorError if the file ends before them.
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
