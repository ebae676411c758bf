"""The result of a calibration, and the small file that keeps it for any number of conversions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.checkpoint.tensors import FP8_MAX
from trtspec.models.layers import renumbered

FORMAT = 1
FILE = "calibration.json"
_LEAST, _MOST = FP8_MAX * 2.0**-149, FP8_MAX * 2.0**127  # of which float32 holds the scale, amax / 448
_CALIBRATE_AGAIN = "calibrate again, or use an unchanged copy of the file"


@dataclass(frozen=True, slots=True)
class Amax:
    """The largest absolute values of a linear layer's weight and of its input."""

    weight: float
    input: float


@dataclass(frozen=True, slots=True)
class Quality:
    """The cost of quantization, measured on held-out texts."""

    texts: int
    """The number of held-out texts."""
    tokens: int
    """The number of next tokens in all of these texts."""
    agreement: float
    """The share of tokens at which both models' likeliest next token is the same."""
    kl: float
    """The mean of KL(original || quantized) in nats."""
    perplexity: float
    """The quantized model's."""
    original_perplexity: float


@dataclass(frozen=True, slots=True)
class CalibratedRanges:
    """The largest absolute values of a model, by Hugging Face's names of modules.

    Measured values are float32.
    """

    linears: Mapping[str, Amax]
    """The values of linear layers."""
    kv: Mapping[str, float]
    """The values of keys and values, under the names of `k_proj` and `v_proj` even if one module computes
    both. Empty if the KV cache is not quantized.
    """
    provenance: Mapping[str, Any]
    """The inputs of the calibration."""
    quality: Quality | None = None
    """None if it was not measured."""


def of_layers(calibration: CalibratedRanges, layers: Sequence[int]) -> CalibratedRanges:
    """Returns the ranges of a model of these layers alone, under their new numbers."""
    linears, kv = renumbered(calibration.linears, layers), renumbered(calibration.kv, layers)
    return replace(calibration, linears=linears, kv=kv)


def write_calibration(file: Path, calibration: CalibratedRanges) -> None:
    """Writes a calibration as JSON, from which exactly the same numbers are read."""
    content = json.dumps({"format": FORMAT, **asdict(calibration)}, indent=1, allow_nan=False)
    file.write_text(content + "\n", encoding="utf-8")


def read_calibration(file: Path) -> CalibratedRanges:
    """Reads a calibration; raises ModelError for another file, or for a number that cannot be an amax."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            problem = f"is a calibration of format {content['format']}; this trtspec reads {FORMAT}"
            raise ModelError(file, problem, _CALIBRATE_AGAIN)
        quality = content["quality"]
        calibration = CalibratedRanges(
            linears={name: Amax(**amax) for name, amax in content["linears"].items()},
            kv=dict(content["kv"]),
            provenance=dict(content["provenance"]),
            quality=Quality(**quality) if quality else None,
        )
    except FileNotFoundError:
        raise ModelError(file, "is missing", _CALIBRATE_AGAIN) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problem = f"is not a calibration of trtspec ({type(error).__name__}: {error})"
        raise ModelError(file, problem, _CALIBRATE_AGAIN) from None
    check_amax(file, calibration, _CALIBRATE_AGAIN)
    return calibration


def check_amax(subject: str | Path, calibration: CalibratedRanges, repair: str) -> None:
    """Raises ModelError for an amax that is not a positive number, or whose scale float32 does not hold."""
    numbers = {f"{name}, weight": amax.weight for name, amax in calibration.linears.items()}
    numbers |= {f"{name}, input": amax.input for name, amax in calibration.linears.items()}
    numbers |= {f"{name}, output": amax for name, amax in calibration.kv.items()}
    for name, amax in numbers.items():
        if not (isinstance(amax, float) and _LEAST <= amax <= _MOST):
            raise ModelError(subject, f"{name}: {amax!r} is not a valid largest absolute value", repair)
