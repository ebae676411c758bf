"""Qwen3: `Qwen3ForCausalLM`, with norms of q and k in place of Qwen2's biases.

TensorRT-LLM tells it from Qwen2 by `qwen_type` and `attn_bias` alone; without `qwen_type` it silently leaves
the norms out.
"""

from __future__ import annotations

from functools import partial

from trtspec.models.families import decoder, qwen2
from trtspec.models.families.family import ConfigKey, ModelFamily

NO_BIASES = ConfigKey(
    "attn_bias", value=False, default=True, otherwise="TensorRT-LLM would add biases that this family lacks"
)
FAMILY = ModelFamily(
    name="qwen3",
    check=qwen2.check,
    weights=partial(decoder.weights, qk_norm=True),
    config=qwen2.config,
    ignored=decoder.IGNORED,
    keys=(
        ConfigKey(
            "qwen_type",
            value="qwen3",
            default="qwen2",
            otherwise="TensorRT-LLM would silently leave out the norms of q and k",
        ),
        NO_BIASES,
    ),
    norms_heads=True,
)
