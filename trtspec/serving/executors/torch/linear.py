"""The matrix products of a model, whose weights are constant, and the norm before them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.fp8 import E4M3
from trtspec.serving.executors.torch.matrix import Matrix
from trtspec.serving.executors.torch.packed_weights import Pack, packed


class Linear:
    """Computes `x @ weight.T + bias` for `x` of any number of rows; `weight` is `[out, in]`.

    `product` computes the same from an `x` that has been multiplied by `scale`, a power of two. `pack` makes
    it of the weights.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: Pack = packed) -> None:
        self.product, self.scale = pack(weight, bias)
        self._scale = None if self.scale == 1 else torch.tensor(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        return self.product(x if self._scale is None else x * self._scale)


class QuantizedLinear:
    """A product whose input is rounded to float8, as its weight is: W8A8."""

    def __init__(self, quantize: E4M3, linear: Linear) -> None:
        self._quantize, self._linear = quantize, linear

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        return self._linear(self._quantize(x))


def linear(matrix: Matrix, pack: Pack = packed) -> Callable[[Tensor], Tensor]:
    """Returns the product that `matrix` describes, as `pack` makes it."""
    product = Linear(matrix.weight, matrix.bias, pack)
    return product if matrix.quantize is None else QuantizedLinear(matrix.quantize, product)


class NormedLinear:
    """Computes `rms_norm(x) @ weight.T + bias`.

    `rms_norm(x)` is `x / sqrt(mean(x ** 2) + epsilon) * norm`. On a CPU, and in float32,
    `sqrt(|x| ** 2 + size * epsilon)`, the length of a hypotenuse, costs half of `F.rms_norm` for few rows.
    `product` is the product without the norm.
    """

    def __init__(self, norm: Tensor, matrix: Matrix, epsilon: float, pack: Pack = packed) -> None:
        self._norm, self._epsilon, size = norm, epsilon, norm.shape[0]
        self._floor = torch.tensor(math.sqrt(size * epsilon), device=norm.device, dtype=torch.float32)
        self.product = self._linear = linear(matrix, pack)
        self._scaled_norm: Tensor | None = None
        is_on_cpu = norm.device.type == "cpu"
        if (is_on_cpu or norm.dtype == torch.float32) and isinstance(self.product, Linear):
            self._scaled_norm = norm.float() * (math.sqrt(size) * self.product.scale)
            self._linear = self.product.product

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        if self._scaled_norm is None:
            return self._linear(self.norm(x))
        length: Tensor = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        return self._linear((x / length.hypot_(self._floor)).mul_(self._scaled_norm).to(x.dtype))

    def norm(self, x: Tensor) -> Tensor:
        """Returns `rms_norm(x)` alone."""
        return F.rms_norm(x, self._norm.shape, self._norm, self._epsilon)
