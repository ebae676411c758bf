"""Converts Qwen1.5-MoE and Qwen2-MoE: `Qwen2MoeForCausalLM`, with a shared expert for every token.

TensorRT-LLM's `models/qwen` has experts in every layer, or in none.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder, experts, qwen2
from trtspec.models.families.experts import ExpertNames
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.families.window import check_none
from trtspec.models.source import Source

NAMES = ExpertNames("mlp")


def check(source: Source) -> None:
    """Raises ModelError if only some layers have experts, and for features that no Qwen may have."""
    decoder.check(source)
    check_none(source)
    config = source.config
    step, plain = config.get("decoder_sparse_step", int, 1), config.get("mlp_only_layers", list, [])
    if step != 1 or plain:
        problem = f"some layers have no experts (decoder_sparse_step {step}, mlp_only_layers {plain})"
        raise ModelError(config.file, f"{problem}; supported for {source.architecture}: experts in all")
    if not config.get("qkv_bias", bool, True):
        raise ModelError(config.file, "qkv_bias is false; TensorRT-LLM's Qwen2 always has these biases")


def config(source: Source) -> dict[str, Any]:
    """Adds to `keys` every key of `QWenConfig`."""
    assert source.experts is not None
    renormalized = source.config.get("norm_topk_prob", bool, False)
    return {
        **qwen2.config(source),
        **experts.config(source, renormalized=renormalized),
        "moe_intermediate_size": source.experts.intermediate_size,
        "moe_shared_expert_intermediate_size": source.experts.shared_intermediate_size,
    }


FAMILY = ModelFamily(
    name="qwen2_moe",
    check=check,
    weights=partial(decoder.weights, qkv_bias=True, mlp=NAMES.weights),
    config=config,
    ignored=decoder.IGNORED,
    keys=(
        ConfigKey(
            "qwen_type", value="qwen2_moe", default="qwen2", otherwise="TensorRT-LLM would build another Qwen"
        ),
        qwen2.BIASES,
        experts.ACTIVATION,
    ),
    experts=True,
    fused_gate=True,
)
