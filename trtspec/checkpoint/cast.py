"""Floats from one dtype to another, as bytes: numpy has no bfloat16, which is the upper half of a float32."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
_NUMPY: dict[str, Any] = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}


def cast(data: bytes | bytearray | memoryview, source: str, target: str) -> bytes | bytearray | memoryview:
    """The same numbers in another dtype (safetensors names), rounded to nearest, ties to even.

    Raises OverflowError if a finite number is too large for the target.
    """
    if source == target:
        return data
    array = np.frombuffer(data, _NUMPY[source])
    wide = (array.astype("<u4") << 16).view("<f4") if source == "BF16" else array.astype("<f4")
    with np.errstate(over="ignore"):
        narrow = _to_bfloat16(wide) if target == "BF16" else wide.astype(_NUMPY[target])
    if np.any(_infinite(narrow, target) & np.isfinite(wide)):
        raise OverflowError(float(np.abs(wide[np.isfinite(wide)]).max()))
    return narrow.tobytes()


def _to_bfloat16(wide: NDArray[np.float32]) -> NDArray[np.uint16]:
    bits = wide.view("<u4")
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    # Rounding could carry a NaN's payload into the sign: keep its upper half, and the bit that makes it
    # quiet.
    return np.where(np.isnan(wide), (bits >> 16) | 0x40, rounded).astype("<u2")


def _infinite(array: NDArray[Any], dtype: str) -> Any:
    return (array & 0x7FFF) == 0x7F80 if dtype == "BF16" else np.isinf(array)
