"""What a conversion is asked for, beside the model."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.checkpoint.calibration import Calibration
from trtspec.checkpoint.mapping import Mapping


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """`dtype` (`float32`, `float16`, `bfloat16`) is that of all that stays unquantized.

    `fp8` quantizes weights and activations, `fp8_kv_cache` the cache too. `calibration` is None for what
    needs none, and for an FP8 model, which has its own.
    """

    dtype: str
    mapping: Mapping = field(default_factory=Mapping)
    fp8: bool = False
    fp8_kv_cache: bool = False
    calibration: Calibration | None = None
