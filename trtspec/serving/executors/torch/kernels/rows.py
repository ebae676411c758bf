"""The kernels that make rows of rows: the norm before a product, and the gate of an MLP."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.serving.executors.torch.kernels.kernel import Kernel, RowsCall

# What an exponential costs, in products of two numbers.
_EXPONENTIAL = 8


class Norm:
    """Computes `weight * x / hypot(|x|, floor)` of rows of `dtype`; `weight` is `[width]`."""

    def __init__(self, weight: Tensor, floor: float, dtype: torch.dtype) -> None:
        self._kernel, self._weight = Kernel("norm", dtype), weight.float().contiguous()
        self._dtype, self._width, self._floor = dtype, len(weight), floor

    def __call__(self, x: Tensor) -> Tensor:
        """Returns rows `[rows, width]` of such rows."""
        assert x.dtype == self._dtype
        x = x.contiguous()
        result = torch.empty_like(x)
        addresses = x.data_ptr(), result.data_ptr(), self._weight.data_ptr()
        call = RowsCall(0, len(x), self._width, *addresses, self._floor)
        self._kernel(call, 2 * x.numel())
        return result


class Gate:
    """Computes `silu(a) * b` of rows of `dtype`, each of which is `a` and `b`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._kernel, self._dtype = Kernel("gate", dtype), dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Returns rows `[rows, width]` of `[rows, 2 * width]`."""
        assert x.dtype == self._dtype
        x = x.contiguous()
        rows, width = x.shape
        result = x.new_empty(rows, width // 2)
        call = RowsCall(0, rows, width, x.data_ptr(), result.data_ptr())
        self._kernel(call, _EXPONENTIAL * result.numel())
        return result
