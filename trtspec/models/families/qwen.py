"""Qwen 1.5 to 3, with and without experts: TensorRT-LLM's QWen class (`models/qwen/{config,convert}.py`).

Qwen3 has norms of q and k in place of Qwen2's biases. TensorRT-LLM tells them apart by `qwen_type` and
`attn_bias` alone; without `qwen_type` it silently leaves the norms out. It has experts in every layer, or in
none. Qwen1.5-MoE and Qwen2-MoE also have a shared expert for every token, which Qwen3-MoE lacks.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.source import Source


def _config(source: Source) -> dict[str, Any]:
    """Adds to `keys` every key of `QWenConfig`, whose defaults are those of the first Qwen."""
    return {
        **decoder.config(source),
        "use_logn_attn": False,
        "num_labels": 1,
        "seq_length": 8192,
        "moe_intermediate_size": 0,
        "moe_shared_expert_intermediate_size": 0,
    }


def _config_with_experts(source: Source) -> dict[str, Any]:
    assert source.experts is not None
    renormalized = source.config.get("norm_topk_prob", bool, False)
    return {
        **_config(source),
        **decoder.moe_config(source, renormalized=renormalized),
        "moe_intermediate_size": source.experts.intermediate_size,
        "moe_shared_expert_intermediate_size": source.experts.shared_intermediate_size,
    }


def _check_experts(source: Source) -> None:
    """Raises ModelError if only some layers have experts, and for features that no Qwen may have."""
    decoder.check(source)
    config = source.config
    step, plain = config.get("decoder_sparse_step", int, 1), config.get("mlp_only_layers", list, [])
    if step != 1 or plain:
        problem = f"some layers have no experts (decoder_sparse_step {step}, mlp_only_layers {plain})"
        raise ModelError(config.file, f"{problem}; supported for {source.architecture}: experts in all")
    if not config.get("qkv_bias", bool, True):
        raise ModelError(config.file, "qkv_bias is false; TensorRT-LLM's Qwen2 always has these biases")


def _no_window(source: Source) -> None:
    """Raises ModelError for a Qwen that uses a window: its layers from `max_window_layers` on do."""
    config, layers = source.config, source.num_hidden_layers
    if not config.get("use_sliding_window", bool, False):
        return
    if config.content.get("sliding_window", 4096) is None:
        return
    full = config.get("max_window_layers", int, 28)
    sliding = config.get("layer_types", list, [decoder.SLIDING] * max(layers - full, 0)).count(
        decoder.SLIDING
    )
    if sliding:
        some = f"{sliding} of {layers} layers have a sliding window"
        raise ModelError(config.file, f"{some}; TensorRT-LLM has none for Qwen")


_EXPERTS = decoder.ExpertNames("mlp").weights
_BIASES = ConfigKey(
    "attn_bias", value=True, default=True, otherwise="TensorRT-LLM would leave out the biases of q, k and v"
)
_NO_BIASES = replace(decoder.NO_BIASES, default=True)
_QWEN2 = ConfigKey(
    "qwen_type", value="qwen2", default="qwen2", otherwise="TensorRT-LLM would build another Qwen"
)
_QWEN3 = ConfigKey(
    "qwen_type",
    value="qwen3",
    default="qwen2",
    otherwise="TensorRT-LLM would silently leave out the norms of q and k",
)

QWEN2 = ModelFamily(
    name="qwen2",
    check=decoder.check,
    weights=partial(decoder.weights, qkv_bias=True),
    config=_config,
    keys=(_QWEN2, _BIASES),
    window=_no_window,
)
QWEN2_MOE = ModelFamily(
    name="qwen2_moe",
    check=_check_experts,
    weights=partial(decoder.weights, qkv_bias=True, mlp=_EXPERTS),
    config=_config_with_experts,
    keys=(replace(_QWEN2, value="qwen2_moe"), _BIASES, decoder.SWIGLU),
    window=_no_window,
    experts=True,
    fused_gate=True,
)
QWEN3 = ModelFamily(
    name="qwen3",
    check=decoder.check,
    weights=partial(decoder.weights, qk_norm=True),
    config=_config,
    keys=(_QWEN3, _NO_BIASES),
    window=_no_window,
    norms_heads=True,
)
QWEN3_MOE = ModelFamily(
    name="qwen3_moe",
    check=_check_experts,
    weights=partial(decoder.weights, qk_norm=True, mlp=_EXPERTS),
    config=_config_with_experts,
    keys=(replace(_QWEN3, value="qwen3_moe"), _NO_BIASES, decoder.SWIGLU),
    window=_no_window,
    norms_heads=True,
    experts=True,
    fused_gate=True,
)
