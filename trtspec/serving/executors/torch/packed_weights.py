"""The packed weights of products on a CPU, in layouts that are read fast, and those that engines share.

A product of a few rows takes about the time of reading the weight once, which makes a verification cheap.
`F.linear` reads at half the speed and works row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.alike import Bytes, alike
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.weights import Rank, forms

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


class SharedWeights:
    """Holds once the weights that are equal to the byte in several engines, which are loaded one by one.

    It compares digests of the weights, which take a ninth of the time of packing. The last engine with a
    weight frees it.
    """

    def __init__(self) -> None:
        self._tensors: dict[bytes, Tensor] = {}
        self._packed: dict[bytes, PackedWeights] = {}

    def tensor(self, tensor: Tensor) -> Tensor:
        """Returns the first tensor that was equal."""
        return self._tensors.setdefault(_digest(tensor), tensor)

    def pack(self, weight: Tensor, bias: Tensor | None) -> PackedWeights:
        """Returns `packed(weight, bias)`, or its earlier result for equal weights."""
        key = _digest(weight) + (b"" if bias is None else _digest(bias))
        if key not in self._packed:
            self._packed[key] = packed(weight, bias)
        return self._packed[key]


def shared_bytes(folders: Sequence[Path], configs: Sequence[TorchEngineConfig]) -> int:
    """Returns the bytes of weights that a target and its draft on a CPU will share.

    Weights in several ranks or in float8 count as different. Raises `EngineLoadError`.
    """
    if len(folders) < 2 or any(config.fp8 or config.tp_size * config.pp_size > 1 for config in configs):
        return 0
    with ExitStack() as stack:
        ranks = [Rank(folder / "rank0.safetensors", torch.device("cpu"), stack) for folder in folders]
        target, draft = (
            {name: form for name, form in forms(config).items() if len(form.shape) > 1} for config in configs
        )

        def read(number: int, name: str) -> Bytes:
            content: Bytes = ranks[number].read(name).view(torch.uint8).numpy().reshape(-1)
            return content

        common = alike(draft, partial(read, 1), target, partial(read, 0), whole=True)
    return sum(math.prod(draft[name].shape) * draft[name].dtype.itemsize for name in common)


def _digest(tensor: Tensor) -> bytes:
    digest = sha256(f"{tensor.dtype} {list(tensor.shape)}".encode())
    digest.update(tensor.contiguous().view(torch.uint8).numpy().data)
    return digest.digest()
