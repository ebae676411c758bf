"""Qwen3-MoE: `Qwen3MoeForCausalLM`, with norms of q and k in place of biases, and no shared expert."""

from __future__ import annotations

from functools import partial

from trtspec.models.families import decoder, experts, qwen2_moe, qwen3
from trtspec.models.families.family import ConfigKey, ModelFamily

FAMILY = ModelFamily(
    name="qwen3_moe",
    check=qwen2_moe.check,
    weights=partial(decoder.weights, qk_norm=True, mlp=qwen2_moe.NAMES.weights),
    config=qwen2_moe.config,
    ignored=decoder.IGNORED,
    keys=(
        ConfigKey(
            "qwen_type",
            value="qwen3_moe",
            default="qwen2",
            otherwise="TensorRT-LLM would silently leave out the norms of q and k",
        ),
        qwen3.NO_BIASES,
        experts.ACTIVATION,
    ),
    norms_heads=True,
    experts=True,
    fused_gate=True,
)
