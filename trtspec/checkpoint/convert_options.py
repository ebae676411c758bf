"""The options of a conversion."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.checkpoint.mapping import Mapping


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of a conversion.

    `dtype` (`float32`, `float16`, `bfloat16`) is that of everything that is not quantized. `fp8` quantizes
    weights and activations, `fp8_kv_cache` the cache too. `calibration` is None if nothing is quantized, and
    for an FP8 model, which has its own scales.
    """

    dtype: str
    mapping: Mapping = field(default_factory=Mapping)
    fp8: bool = False
    fp8_kv_cache: bool = False
    calibration: CalibratedRanges | None = None
