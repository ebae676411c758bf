"""The packed weights of products on a CPU, in layouts that are read fast.

A product of a few rows takes about the time of reading the weight once, which makes a verification cheap.
`F.linear` reads at half the speed and works row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

Product = Callable[[Tensor], Tensor]
Packing = Callable[[Tensor, "Tensor | None"], Product]


class PackedWeights(NamedTuple):
    """A packed weight: `product(x * scale)` is `x @ weight.T + bias`, for `x` of `[rows, in]`."""

    product: Product
    scale: float = 1.0


Pack = Callable[[Tensor, "Tensor | None"], PackedWeights]


def packed(weight: Tensor, bias: Tensor | None) -> PackedWeights:
    """Returns the fastest product with `weight`, `[out, in]`.

    A float32 weight that half precision represents exactly, as in a model published in bfloat16, is stored in
    half precision: that takes half of the memory for the same product. A bfloat16 weight is packed if the CPU
    multiplies bfloat16 itself; otherwise oneDNN would convert it in each product.
    """
    if weight.device.type != "cpu":
        pass
    elif weight.dtype == torch.bfloat16 and _multiplies_bfloat16() and _works(_one_dnn, weight.dtype):
        return PackedWeights(_one_dnn(weight, bias))
    elif weight.dtype == torch.float32:
        shift = _shift(weight)
        scaled = torch.ldexp(weight, torch.tensor(shift))
        if torch.equal(scaled.half().float(), scaled) and _works(_half, weight.dtype):
            return PackedWeights(_half(scaled, bias), 2.0**-shift)
        if _works(_one_dnn, weight.dtype):
            return PackedWeights(_one_dnn(weight, bias))
    return PackedWeights(partial(F.linear, weight=weight.contiguous(), bias=bias))


def _shift(weight: Tensor) -> int:
    """Returns the power of two that scales the largest weight to the end of half precision's range.

    Half precision then has all 8 bits of bfloat16's significand for weights down to 2^-32 of the largest.
    """
    largest = float(weight.abs().max())
    return 15 - math.frexp(largest)[1] if 0 < largest < math.inf else 0


def _half(weight: Tensor, bias: Tensor | None) -> Product:
    """Returns FBGEMM's product, with weights in half precision and everything else in float32."""
    multiply = torch.ops.quantized.linear_dynamic_fp16.default
    content = torch.ops.quantized.linear_prepack_fp16(weight, bias)
    return lambda x: multiply(x, content)


def _one_dnn(weight: Tensor, bias: Tensor | None) -> Product:
    """Returns oneDNN's product, with its own weight layout."""
    multiply = torch.ops.mkldnn._linear_pointwise.default
    content = torch.ops.mkldnn._reorder_linear_weight(weight)
    return lambda x: multiply(x, content, bias, "none", [], "")


@cache
def _works(packing: Packing, dtype: torch.dtype) -> bool:
    """Says whether this build of PyTorch has a packing and computes the right result with it."""
    x, weight = torch.arange(12.0, dtype=dtype).view(3, 4), torch.arange(8.0, dtype=dtype).view(2, 4)
    bias = torch.arange(2.0, dtype=dtype)
    try:
        y = packing(weight, bias)(x)
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return torch.allclose(y, F.linear(x, weight, bias))


def _multiplies_bfloat16() -> bool:
    """Says whether the CPU has AVX-512 BF16 or AMX; False if PyTorch cannot tell."""
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, name, bool)() for name in names)
