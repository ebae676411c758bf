"""The weights of a matrix product, taken from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.fp8 import E4M3


@dataclass(frozen=True, slots=True)
class Matrix:
    """The weights of a product."""

    weight: Tensor
    """`[out, in]`."""
    bias: Tensor | None = None
    """`[out]`."""
    quantize: E4M3 | None = None
    """The rounding of the input in an FP8 model; None in others."""

    def reordered(self, reorder: Callable[[Tensor], Tensor]) -> Matrix:
        """Returns the same product with its outputs in another order."""
        bias = None if self.bias is None else reorder(self.bias)
        return Matrix(reorder(self.weight), bias, self.quantize)


def matrix(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> Matrix:
    """Returns TensorRT-LLM's linear layer `name`, float8 weights expanded to `dtype`."""
    weight, bias = tensors[f"{name}.weight"], tensors.get(f"{name}.bias")
    if weight.dtype != torch.float8_e4m3fn:
        return Matrix(weight, bias)
    weight_scale, input_scale = (
        E4M3(float(tensors[f"{name}.{kind}_scaling_factor"]), dtype) for kind in ("weights", "activation")
    )
    return Matrix(weight_scale.expand(weight, dtype), bias, input_scale)


def expert_matrices(tensors: Mapping[str, Tensor], name: str, dtype: torch.dtype) -> list[Matrix]:
    """Returns the matrix of each expert of TensorRT-LLM's layer `name`; their input has one scale."""
    weights = tensors[f"{name}.weight"]
    if weights.dtype != torch.float8_e4m3fn:
        return [Matrix(weight) for weight in weights]
    scales = tensors[f"{name}.weights_scaling_factor"]
    shared = {f"{name}.activation_scaling_factor": tensors[f"{name}.activation_scaling_factor"]}
    return [
        matrix({**shared, f"{name}.weight": weight, f"{name}.weights_scaling_factor": scale}, name, dtype)
        for weight, scale in zip(weights, scales, strict=True)
    ]


def stacked(tensors: Mapping[str, Tensor], names: tuple[str, str], dtype: torch.dtype) -> Matrix:
    """Returns two layers of the same input, without biases, as one; raises `EngineLoadError`."""
    factors = [tensors.get(f"{name}.activation_scaling_factor") for name in names]
    if factors[0] is not None and factors[0] != factors[1]:
        raise EngineLoadError(f"{names[0]} and {names[1]}", "have different activation_scaling_factor")
    first, second = (matrix(tensors, name, dtype) for name in names)
    return Matrix(torch.cat([first.weight, second.weight]), None, first.quantize)


def swap_halves(rows: Tensor) -> Tensor:
    """Returns the second half of the rows, then the first."""
    return rows.roll(rows.shape[0] // 2, 0)
