"""Qwen2 and Qwen2.5: `Qwen2ForCausalLM` as TensorRT-LLM's `models/qwen/{config,convert}.py` have it."""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.models.families import decoder
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.families.window import check_none
from trtspec.models.source import Source


def check(source: Source) -> None:
    decoder.check(source)
    check_none(source)


def config(source: Source) -> dict[str, Any]:
    """Adds to `keys` every key of `QWenConfig`, whose defaults are those of the first Qwen."""
    return {
        **decoder.config(source),
        "use_logn_attn": False,
        "num_labels": 1,
        "seq_length": 8192,
        "moe_intermediate_size": 0,
        "moe_shared_expert_intermediate_size": 0,
    }


BIASES = ConfigKey(
    "attn_bias", value=True, default=True, otherwise="TensorRT-LLM would leave out the biases of q, k and v"
)
FAMILY = ModelFamily(
    name="qwen2",
    check=check,
    weights=partial(decoder.weights, qkv_bias=True),
    config=config,
    ignored=decoder.IGNORED,
    keys=(
        ConfigKey(
            "qwen_type", value="qwen2", default="qwen2", otherwise="TensorRT-LLM would build another Qwen"
        ),
        BIASES,
    ),
)
