"""Matrix products with constant weights, and the norm before them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.fp8 import E4M3
from trtspec.serving.executors.torch.matrix import Matrix

# Elements of a weight from which oneDNN's fixed 15 us a call are worth it.
PACK_FROM = 2**16


class Linear:
    """`y = x @ weight.T + bias` for `x` of any number of rows; `weight` is `[out, in]`.

    In float32 on a CPU, oneDNN with a weight that it has laid out for itself once reads it at twice the speed
    of `F.linear`, and costs little more for several rows than for one: what makes a verification cheap. The
    layout is the same for every number of rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = bias
        pack = weight.numel() >= PACK_FROM and _can_pack(weight.device.type, weight.dtype)
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight) if pack else None
        self._plain = None if pack else weight.contiguous()

    def __call__(self, x: Tensor) -> Tensor:
        """`x` is `[rows, in]`; returns `[rows, out]`."""
        if self._plain is not None:
            return F.linear(x, self._plain, self._bias)
        linear = torch.ops.mkldnn._linear_pointwise.default
        result: Tensor = linear(x, self._packed, self._bias, "none", [], "")
        return result


class QuantizedLinear:
    """A product whose input is rounded to float8, as its weight was: W8A8."""

    def __init__(self, quantize: E4M3, linear: Linear) -> None:
        self._quantize, self._linear = quantize, linear

    def __call__(self, x: Tensor) -> Tensor:
        """`x` is `[rows, in]`; returns `[rows, out]`."""
        return self._linear(self._quantize(x))


def linear(matrix: Matrix) -> Callable[[Tensor], Tensor]:
    """The product that `matrix` asks for."""
    product = Linear(matrix.weight, matrix.bias)
    return product if matrix.quantize is None else QuantizedLinear(matrix.quantize, product)


class NormedLinear:
    """`y = rms_norm(x) @ weight.T + bias`, where `rms_norm(x)` is `x / sqrt(mean(x ** 2) + epsilon) * norm`.

    In float32, `norm` is made part of `weight`, and what is left costs a third of `F.rms_norm` for few rows:
    `sqrt(|x| ** 2 + size * epsilon)` is the length of a hypotenuse. An input that is quantized must be whole.
    """

    def __init__(self, norm: Tensor, matrix: Matrix, epsilon: float) -> None:
        self._norm, self._epsilon, size = norm, epsilon, norm.shape[0]
        self._folded = norm.dtype == torch.float32 and matrix.quantize is None
        if self._folded:
            matrix = Matrix(matrix.weight * (norm * math.sqrt(size)), matrix.bias)
        self._linear = linear(matrix)
        self._floor = torch.tensor(math.sqrt(size * epsilon), device=norm.device)

    def __call__(self, x: Tensor) -> Tensor:
        """`x` is `[rows, in]`; returns `[rows, out]`."""
        if self._folded:
            length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
            return self._linear(x / length.hypot_(self._floor))
        return self._linear(F.rms_norm(x, self._norm.shape, self._norm, self._epsilon))


@cache
def _can_pack(device: str, dtype: torch.dtype) -> bool:
    """Whether this build of PyTorch has oneDNN's prepacked linear and gets the right result from it."""
    if device != "cpu" or dtype != torch.float32:
        return False
    x, weight = torch.arange(12.0).view(3, 4), torch.arange(8.0).view(2, 4)
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        y = torch.ops.mkldnn._linear_pointwise.default(x, packed, None, "none", [], "")
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.allclose(y, x @ weight.T)
