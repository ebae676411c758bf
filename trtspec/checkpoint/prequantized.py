"""Reads the scales that an FP8 model has, so that it is neither calibrated nor quantized again.

Each linear layer `X` has two numbers, with which stored ones are multiplied: `X.weight_scale` and
`X.input_scale`. Each attention layer `A` has two for the KV cache: `A.k_proj.k_scale` and `A.v_proj.v_scale`
(ModelOpt, also if one module makes queries, keys and values), `A.k_scale` and `A.v_scale` (compressed-tensors
since 0.6, AutoFP8), `A.k_proj.output_scale` and `A.v_proj.output_scale` (older compressed-tensors), or one,
`A.kv_scale` (older AutoFP8). Scales of compressed-tensors have the dtype of the model; zero points, if they
are stored, are zero.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trtspec.base.errors import TensorError
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.cast import DTYPES, FP8, FP8_MAX, NUMPY, caster
from trtspec.models.families import family_of
from trtspec.models.source import DOWNLOAD_AGAIN, QUANTIZE_IT, Source, Tensor

_KEYS = re.compile(r"(model\.layers\.\d+\.self_attn)\.(?:k|qkv)_proj\.weight")
_ZERO_POINTS = tuple(f"{of}_zero_point" for of in ("weight", "input", "output", "k", "v"))


@dataclass(frozen=True, slots=True)
class Prequantized:
    """The scales of an FP8 model, as a conversion needs them."""

    calibration: CalibratedRanges
    """Has amax = scale * 448, exact in float64."""
    stored_scales: Mapping[str, float]
    """The number with which the FP8 numbers of a module's weight are to be multiplied, by module."""
    has_kv_scales: bool
    """False if the model has no scales of keys and values, which are then 1.0."""
    scale_tensors: frozenset[str]
    """The names of the tensors from which all of this was read; they are no weights."""


def read_prequantized(source: Source) -> Prequantized | None:
    """The scales of an FP8 model; None for a model that is not quantized.

    Raises TensorError for a scale that is missing or unusable, or a linear layer that is not FP8.
    """
    if source.scheme is None:
        return None
    reader = _Reader(source.tensors)
    weights = family_of(source).weights(source)
    products = {part.name for weight in weights if weight.linear for part in weight.parts}
    linears, stored = {}, {}
    for name, tensor in source.tensors.items():
        if tensor.dtype == FP8 and name.endswith(".weight"):
            module = name.removesuffix(".weight")
            stored[module] = reader.scale_of(tensor, f"{module}.weight_scale")
            inputs = reader.scale_of(tensor, f"{module}.input_scale")
            linears[module] = Amax(weight=stored[module] * FP8_MAX, input=inputs * FP8_MAX)
            reader.check_zero_points(module)
        elif name in products:
            problem = f"{name}: is {tensor.dtype}; the config says FP8, so all linear layers must be FP8"
            raise TensorError(tensor.file, problem, QUANTIZE_IT)
    scales = _cache_scales(source, reader)
    provenance = {"method": source.scheme.method, "scales": "stored in the model"}
    return Prequantized(
        calibration=CalibratedRanges(
            linears, {name: (scale or 1.0) * FP8_MAX for name, scale in scales.items()}, provenance
        ),
        stored_scales=stored,
        has_kv_scales=all(scales.values()),
        scale_tensors=frozenset(reader.read),
    )


def _cache_scales(source: Source, reader: _Reader) -> dict[str, float | None]:
    """The scales of keys and values, by the names of `k_proj` and `v_proj`; None for one not stored."""
    scales = {}
    for match in filter(None, map(_KEYS.fullmatch, source.tensors)):
        attention = match[1]
        reader.check_zero_points(attention)
        for letter in "kv":
            module = f"{attention}.{letter}_proj"
            names = f"{module}.{letter}_scale", f"{attention}.{letter}_scale", f"{module}.output_scale"
            scales[module] = reader.first(*names, f"{attention}.kv_scale")
    return scales


class _Reader:
    """Reads scales, and remembers which tensors they were."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self.read: set[str] = set()

    def scale_of(self, weight: Tensor, name: str) -> float:
        scale = self.first(name)
        if scale is None:
            problem = f"{name}: is missing, but {weight.name} is FP8"
            raise TensorError(weight.file, problem, QUANTIZE_IT)
        return scale

    def first(self, *names: str) -> float | None:
        """The scale under the first of these names that exists; None if none does."""
        name = next((name for name in names if name in self._tensors), None)
        if name is None:
            return None
        self.read.add(name)
        tensor = self._tensors[name]
        if tensor.elements != 1:
            problem = f"{name}: has {tensor.elements} scales; TensorRT-LLM's FP8 has one per tensor"
            raise TensorError(tensor.file, problem, QUANTIZE_IT)
        number = _number(tensor)
        if not (math.isfinite(number) and number > 0):
            raise TensorError(tensor.file, f"{name}: is {number}, which is not a valid scale", DOWNLOAD_AGAIN)
        return number

    def check_zero_points(self, module: str) -> None:
        for name in (f"{module}.{point}" for point in _ZERO_POINTS if f"{module}.{point}" in self._tensors):
            tensor = self._tensors[name]
            if any(tensor.read()):
                problem = f"{name}: is not zero; TensorRT-LLM's FP8 is symmetric"
                raise TensorError(tensor.file, problem, QUANTIZE_IT)
            self.read.add(name)


def _number(tensor: Tensor) -> float:
    if tensor.dtype not in DTYPES.values():
        raise TensorError(tensor.file, f"{tensor.name}: is a scale of dtype {tensor.dtype}", QUANTIZE_IT)
    stored = np.frombuffer(tensor.read(), NUMPY[tensor.dtype])
    return float(caster(tensor.dtype, "F32")(stored)[0])
