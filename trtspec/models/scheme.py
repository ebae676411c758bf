"""Reads how a published model was quantized, from `quantization_config` or `hf_quant_config.json`.

Only one scheme is the same as TensorRT-LLM's `FP8`: E4M3 weights and inputs of every linear layer, each with
one static scale. Three tools publish it: NVIDIA ModelOpt (`modelopt`; convert_hf_config.py), llm-compressor
(`compressed-tensors`; quant_config.py and quant_args.py) and AutoFP8 (`fp8`; quantize.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.base.errors import ModelError

QUANTIZE_IT = "use the unquantized model, with quantization: {weights: fp8, calibration: …} in the recipe"
SERVE_IT = f"{QUANTIZE_IT}; or use a backend that reads it unchanged, such as engine.backend: vllm"
_FORMATS = ("float-quantized", "naive-quantized")


@dataclass(frozen=True, slots=True)
class Scheme:
    """Static FP8 with one scale for each tensor."""

    method: str
    """The tool's `quant_method`."""
    kv_cache: bool
    """True if the KV cache is to be FP8 too."""


def read_scheme(file: Path, content: Mapping[str, Any]) -> Scheme:
    """The scheme that `content` of `file` describes; raises ModelError unless it is static FP8."""
    method = _method(content)
    read = _READERS.get(method)
    try:
        if read is None:
            known = ", ".join(_READERS)
            raise _refusal(file, f"quant_method is {method}; trtspec converts FP8 of {known}")
        return Scheme(method, read(file, content))
    except ModelError as error:
        raise ModelError(file, f"is quantized to {name_of(content)}: {error.problem}", SERVE_IT) from None
    except (AttributeError, KeyError, TypeError) as error:
        raise ModelError(file, f"the quantization in it cannot be read: {error}") from error


def name_of(content: Mapping[str, Any]) -> str:
    """Returns the common name of the quantization scheme that a config describes, as far as known."""
    method, settings = _method(content), content.get("quantization", content)
    if method == "modelopt" and isinstance(settings, dict):
        return str(settings.get("quant_algo")).upper()
    if method == "compressed-tensors":
        return _name_of_groups(content)
    if method == "fp8" and (block := content.get("weight_block_size")):
        return f"FP8 in blocks of {'x'.join(map(str, block)) if isinstance(block, list) else block}"
    if method in ("gptq", "awq"):
        group = content.get("group_size")
        in_groups = f" in groups of {group}" if type(group) is int and group > 0 else ""
        return f"{method.upper()}, INT{content.get('bits')}{in_groups}"
    return "an unknown scheme" if method == "none" else method.upper()


def _name_of_groups(content: Mapping[str, Any]) -> str:
    form, groups = str(content.get("format")), content.get("config_groups")
    first = next(iter(groups.values()), None) if isinstance(groups, dict) else None
    weights = first.get("weights") if isinstance(first, dict) else None
    if form.startswith("nvfp4") or not isinstance(weights, dict):
        return "NVFP4" if form.startswith("nvfp4") else f"compressed-tensors ({form})"
    kind = "FP" if weights.get("type") == "float" else "INT"
    return f"{kind}{weights.get('num_bits', 8)} by {weights.get('strategy') or 'tensor'}"


def _method(content: Mapping[str, Any]) -> str:
    return str(content.get("quant_method", "modelopt" if "quantization" in content else None)).lower()


def _modelopt(file: Path, content: Mapping[str, Any]) -> bool:
    """Returns True if the KV cache is FP8; reads `hf_quant_config.json` and its translation in
    `config.json`.
    """
    settings = content.get("quantization", content)
    algorithm = str(settings.get("quant_algo")).upper()
    if algorithm != "FP8":
        raise _refusal(file, f"quant_algo is {algorithm}, not FP8")
    scheme = settings.get("kv_cache_scheme")
    cache = settings.get("kv_cache_quant_algo", "FP8" if _is_fp8(scheme) else scheme)
    if cache not in (None, "FP8"):
        raise _refusal(file, f"the KV cache is quantized to {cache}, not FP8")
    return bool(cache == "FP8")


def _compressed_tensors(file: Path, content: Mapping[str, Any]) -> bool:
    if content.get("format") not in _FORMATS:
        raise _refusal(file, f"format is {content.get('format')}, not one of {', '.join(_FORMATS)}")
    sparsity = (content.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise _refusal(file, f"the weights are stored sparse ({sparsity})")
    if content.get("transform_config"):
        raise _refusal(file, "transform_config demands transforms at run time")
    for name, group in content["config_groups"].items():
        for key in ("weights", "input_activations"):
            problem = _flaw(group.get(key))
            if problem:
                raise _refusal(file, f"{name}.{key}: {problem}")
    cache = content.get("kv_cache_scheme")
    if cache and _flaw(cache):
        raise _refusal(file, f"kv_cache_scheme: {_flaw(cache)}")
    return bool(cache)


def _fp8(file: Path, content: Mapping[str, Any]) -> bool:
    block = content.get("weight_block_size")
    if block:
        raise _refusal(file, f"the weights have a scale for each block of {block}, not one per tensor")
    if content.get("activation_scheme") != "static":
        raise _refusal(
            file, f"activation_scheme is {content.get('activation_scheme')}: no input scale is stored"
        )
    return content.get("kv_cache_scheme") == "static"


def _flaw(settings: Mapping[str, Any] | None) -> str | None:
    """Returns why `QuantizationArgs` of compressed-tensors are not one static FP8 scale; None if they are."""
    if not settings:
        return "not quantized"
    if not _is_fp8(settings):
        return f"{settings.get('num_bits', 8)} bits of {settings.get('type', 'int')}, not FP8"
    if settings.get("dynamic"):
        return "dynamic: no scale is stored"
    if settings.get("strategy") not in (None, "tensor") or settings.get("group_size"):
        return f"a scale for each {settings.get('strategy') or 'group'}, not one per tensor"
    if settings.get("symmetric") is False:
        return "asymmetric"
    return None


def _is_fp8(settings: Any) -> bool:
    return isinstance(settings, dict) and (settings.get("num_bits"), settings.get("type")) == (8, "float")


def _refusal(file: Path, problem: str) -> ModelError:
    return ModelError(file, f"{problem}; TensorRT-LLM's FP8 has static scales, one per tensor", QUANTIZE_IT)


_READERS = {"modelopt": _modelopt, "compressed-tensors": _compressed_tensors, "fp8": _fp8}
