"""Computes the FP8 scales that TensorRT-LLM reads from what a calibration found; pure.

A stored number times its scale is the real one, so scale = amax / 448, in float32. One product has one scale:
query, key and value share theirs, and so do `mlp.fc` and `mlp.gate`, which a fused MLP reads as one
(TensorRT-LLM's `quantization/layers.py`, ModelOpt's `export/postprocess.py`). The scale of a KV cache that
was calibrated here is at least 1, which leaves keys and values up to 448 as they are
(`get_kv_cache_scaling_factor` of ModelOpt); a published one is kept as it is, as TensorRT-LLM's own
conversion keeps it (`models/llama/convert.py`). Separate scales of keys and of values are written because
ModelOpt writes them, and TensorRT-LLM does not read them. Its own conversion writes
`kv_cache_rcp_scaling_factor` instead, which an engine build computes again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from trtspec.base.errors import ModelError
from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.checkpoint.cast import FP8_MAX
from trtspec.models.families.family import FamilyTensor, TensorPart

T = TypeVar("T")
QKV = "attention.qkv.weight"
_SHARED = {"mlp.gate.weight": "mlp.fc.weight"}


@dataclass(frozen=True, slots=True)
class Scales:
    """The scales of one linear weight."""

    weights: Mapping[str, float]
    """The scale of each part of the weight, by its module."""
    tensors: Mapping[str, tuple[float, ...]]
    """All scales that are written beside the weight, by their name within the layer.

    Each is one number, or one for each expert.
    """


def shape_of(scales: tuple[float, ...]) -> tuple[int, ...]:
    """The shape in which scales are written."""
    return (1,) if len(scales) == 1 else (len(scales), 1)


def scales_of(
    weights: Iterable[FamilyTensor],
    calibration: CalibratedRanges,
    *,
    kv_cache: bool,
    least_cache_scale: float = 1.0,
) -> dict[FamilyTensor, Scales]:
    """The scales of every linear weight; those of a KV cache are at least `least_cache_scale`.

    Raises ModelError for a layer that was not calibrated.
    """
    linears = [weight for weight in weights if weight.linear]
    groups: dict[tuple[int | None, str], list[TensorPart]] = {}
    for weight in linears:
        groups.setdefault(_group(weight), []).extend(weight.parts)
    result = {}
    for weight in linears:
        parts = groups[_group(weight)]
        matrices = (parts,) if weight.experts is None else weight.matrices
        scales = [
            to_scale(max(_find(calibration.linears, part.module).weight for part in matrix))
            for matrix in matrices
        ]
        activation = to_scale(max(_find(calibration.linears, part.module).input for part in parts))
        stem = weight.name.removesuffix(".weight")
        tensors = {
            f"{stem}.weights_scaling_factor": tuple(scales),
            f"{stem}.activation_scaling_factor": (activation,),
        }
        if kv_cache and weight.name == QKV:
            tensors |= _cache_scales(weight, calibration, least_cache_scale)
        modules = {
            part.module: scale for matrix, scale in zip(matrices, scales, strict=True) for part in matrix
        }
        result[weight] = Scales(modules, tensors)
    return result


def to_scale(amax: float) -> float:
    """The float32 nearest to amax / 448."""
    return float(np.float32(amax / FP8_MAX))


def _group(weight: FamilyTensor) -> tuple[int | None, str]:
    return weight.layer, _SHARED.get(weight.name, weight.name)


def _cache_scales(
    weight: FamilyTensor, calibration: CalibratedRanges, least: float
) -> dict[str, tuple[float, ...]]:
    """The scales of the KV cache: the shared one, which TensorRT-LLM reads, and ModelOpt's separate ones."""
    k, v = (max(to_scale(_find(calibration.kv, name)), least) for name in weight.caches)
    names = ("kv_cache", "k_cache", "v_cache")
    return {
        f"attention.{name}_scaling_factor": (scale,)
        for name, scale in zip(names, (max(k, v), k, v), strict=True)
    }


def _find(found: Mapping[str, T], module: str) -> T:
    if module not in found:
        raise ModelError("the calibration", f"has no values for {module}", "calibrate this model again")
    return found[module]
