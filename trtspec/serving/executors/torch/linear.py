"""The matrix products of a model, whose weights are constant, and the norm before them."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.fp8 import E4M3
from trtspec.serving.executors.torch.kernels.kernel import has_kernels
from trtspec.serving.executors.torch.kernels.rows import Norm
from trtspec.serving.executors.torch.matrix import Matrix
from trtspec.serving.executors.torch.packed_weights import Pack, packed


class Linear:
    """Computes `x @ weight.T + bias` for `x` of any number of rows; `weight` is `[out, in]`.

    `product`, which `pack` makes from the weights, computes the same from `x * scale`, with `scale` a power
    of two.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None, pack: Pack = packed) -> None:
        self.product, self.scale = pack(weight, bias)
        self._scale = None if self.scale == 1 else torch.tensor(self.scale)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        return self.product(x if self._scale is None else x * self._scale)


class QuantizedLinear:
    """A W8A8 product: its input is rounded to float8, as its weight was."""

    def __init__(self, quantize: E4M3, linear: Linear) -> None:
        self._quantize, self._linear = quantize, linear

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        return self._linear(self._quantize(x))


def linear(matrix: Matrix, pack: Pack = packed) -> Callable[[Tensor], Tensor]:
    """Returns the product of `matrix`, with weights packed by `pack`."""
    product = Linear(matrix.weight, matrix.bias, pack)
    return product if matrix.quantize is None else QuantizedLinear(matrix.quantize, product)


class NormedLinear:
    """Computes `rms_norm(x) @ weight.T + bias`; `product` is the product without the norm.

    `rms_norm(x)` is `x / sqrt(mean(x ** 2) + epsilon) * norm`.
    """

    def __init__(self, norm: Tensor, matrix: Matrix, epsilon: float, pack: Pack = packed) -> None:
        self._norm, self._epsilon, size = norm, epsilon, norm.shape[0]
        self.product = self._linear = linear(matrix, pack)
        self._normed: Callable[[Tensor], Tensor] = self.norm
        if has_kernels(norm.device):
            scale = math.sqrt(size)
            if isinstance(self.product, Linear):
                self._linear, scale = self.product.product, scale * self.product.scale
            self._normed = Norm(norm.float() * scale, math.sqrt(size * epsilon), norm.dtype)

    def __call__(self, x: Tensor) -> Tensor:
        """Returns the product `[rows, out]` of `x` `[rows, in]`."""
        return self._linear(self._normed(x))

    def norm(self, x: Tensor) -> Tensor:
        """Returns `rms_norm(x)` alone."""
        return F.rms_norm(x, self._norm.shape, self._norm, self._epsilon)
