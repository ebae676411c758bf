"""The kernels of a `RowsCall`."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numba import carray

from trtspec.serving.executors.torch.kernels.calls import RowsCall
from trtspec.serving.executors.torch.kernels.compiled.compiler import (
    ONE,
    at_address,
    compiled,
    exp,
    narrow,
    take,
    wide,
)

# The number of rows that a thread takes at a time.
_ROWS = 4


@cache
def norm(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that computes `weight * x / hypot(|x|, floor)` of each row `x`."""

    def kernel(call: Any) -> None:
        args = carray(call, 1)[0]
        rows = carray(at_address(args.rows), (args.tasks, args.width), element)
        result = carray(at_address(args.result), (args.tasks, args.width), element)
        weight = carray(at_address(args.weight), args.width, np.float32)
        first = take(call, _ROWS)
        while first < args.tasks:
            for number in range(first, min(first + _ROWS, args.tasks)):
                row, normed = rows[number], result[number]
                squares = np.float32(args.floor * args.floor)
                for i in range(args.width):
                    x = wide(row[i])
                    squares += x * x
                share = ONE / np.sqrt(squares)
                for i in range(args.width):
                    normed[i] = narrow(wide(row[i]) * share * weight[i], normed)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)


@cache
def gate(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that computes `silu(x) * y` of each row, which is `x` and `y`."""

    def kernel(call: Any) -> None:
        args = carray(call, 1)[0]
        half = args.width // 2
        rows = carray(at_address(args.rows), (args.tasks, 2, half), element)
        result = carray(at_address(args.result), (args.tasks, half), element)
        first = take(call, _ROWS)
        while first < args.tasks:
            for number in range(first, min(first + _ROWS, args.tasks)):
                gates, others, gated = rows[number, 0], rows[number, 1], result[number]
                for i in range(half):
                    x = wide(gates[i])
                    gated[i] = narrow(x / (ONE + exp(-x)) * wide(others[i]), gated)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)
