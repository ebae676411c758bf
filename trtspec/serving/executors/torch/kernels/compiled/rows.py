"""The kernels of a `RowsCall`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from trtspec.serving.executors.torch.kernels.calls import RowsCall
from trtspec.serving.executors.torch.kernels.compiled.arithmetic import (
    ONE,
    at_address,
    exp,
    narrow,
    take,
    wide,
)
from trtspec.serving.executors.torch.kernels.compiled.compiler import compiled

# Rows that a thread takes at a time.
_ROWS = 4


@cache
def norm(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that makes `weight * x / hypot(|x|, floor)` of each row `x`."""

    def kernel(call: Any) -> None:
        told = carray(call, 1)[0]
        rows = carray(at_address(told.rows), (told.tasks, told.width), element)
        result = carray(at_address(told.result), (told.tasks, told.width), element)
        weight = carray(at_address(told.weight), told.width, np.float32)
        first = take(call, _ROWS)
        while first < told.tasks:
            for number in range(first, min(first + _ROWS, told.tasks)):
                row, normed = rows[number], result[number]
                squares = np.float32(told.floor * told.floor)
                for i in range(told.width):
                    x = wide(row[i])
                    squares += x * x
                share = ONE / np.sqrt(squares)
                for i in range(told.width):
                    normed[i] = narrow(wide(row[i]) * share * weight[i], normed)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)


@cache
def gate(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that makes `silu(x) * y` of each row, which is `x` and `y`."""

    def kernel(call: Any) -> None:
        told = carray(call, 1)[0]
        half = told.width // 2
        rows = carray(at_address(told.rows), (told.tasks, 2, half), element)
        result = carray(at_address(told.result), (told.tasks, half), element)
        first = take(call, _ROWS)
        while first < told.tasks:
            for number in range(first, min(first + _ROWS, told.tasks)):
                gates, others, gated = rows[number, 0], rows[number, 1], result[number]
                for i in range(half):
                    x = wide(gates[i])
                    gated[i] = narrow(x / (ONE + exp(-x)) * wide(others[i]), gated)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)
