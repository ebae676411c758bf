"""The options of a conversion."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.checkpoint.calibration import CalibratedRanges
from trtspec.checkpoint.mapping import Mapping


@dataclass(frozen=True, slots=True)
class ConvertOptions:
    """The options of a conversion."""

    dtype: str
    """The dtype of everything that is not quantized: `float32`, `float16` or `bfloat16`."""
    mapping: Mapping = field(default_factory=Mapping)
    fp8: bool = False
    """Quantizes weights and activations."""
    fp8_kv_cache: bool = False
    """Quantizes the KV cache too."""
    calibration: CalibratedRanges | None = None
    """None if nothing is quantized, and for an FP8 model, which has its own scales."""
