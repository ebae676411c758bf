"""Fake quantization to float8 e4m3 with one scale for each tensor."""

from __future__ import annotations

import torch
from torch import Tensor

MAX = 448.0


class E4M3:
    """Rounds numbers to float8 and back, bit for bit as NVIDIA ModelOpt does.

    `scale` is a checkpoint's scaling factor, amax / 448. ModelOpt (0.47, `tensor_quant.py`, `_fp8_eager`)
    multiplies by 448 / amax and then by its inverse, all in float32. Other factors would round ties to
    another value. So amax is restored: it was an element of a tensor of `dtype`, which has fewer digits than
    the scale.
    """

    def __init__(self, scale: float, dtype: torch.dtype) -> None:
        nearest = torch.tensor(scale, dtype=torch.float32) * MAX
        stored = nearest.to(dtype).to(torch.float32)
        amax = torch.where((stored - nearest).abs() <= nearest * 2**-22, stored, nearest)
        up = MAX / amax
        self._up, self._down = float(up), float(1 / up)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns `x` rounded, in its own shape and dtype, and clamped to amax."""
        scaled = (x.to(torch.float32) * self._up).clamp_(-MAX, MAX)
        return self.expand(scaled.to(torch.float8_e4m3fn), x.dtype)

    def expand(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Returns the values of `stored`, float8 numbers of this scale, in `dtype`."""
        return stored.to(torch.float32).mul_(self._down).to(dtype)
