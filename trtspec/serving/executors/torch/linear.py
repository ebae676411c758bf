"""The matrix products of a model: the weights in a checkpoint, FP8 ones too, and the norm before them.

On a CPU the weights are packed in layouts that are read fast, which engines share. A product of a few rows
takes about the time of reading the weight once, which makes a verification cheap. `F.linear` reads at half
the speed and works row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.alike import Bytes, alike
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import Norm, has_kernels
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


MAX = 448.0


class E4M3:
    """Rounds numbers to float8 e4m3 and back, with one scale a tensor, bit for bit as NVIDIA ModelOpt does.

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


def linear(matrix: Matrix, pack: Pack = packed) -> Callable[[Tensor], Tensor]:
    """Returns the product of `matrix`, with weights packed by `pack`.

    In a W8A8 product the input is rounded to float8, as the weight was.
    """
    product, quantize = Linear(matrix.weight, matrix.bias, pack), matrix.quantize
    return product if quantize is None else lambda x: product(quantize(x))


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
