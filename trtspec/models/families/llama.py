"""Llama 2 to 3.3: `LlamaForCausalLM` as TensorRT-LLM's `models/llama/{config,convert}.py` have it."""

from __future__ import annotations

from typing import Any

from trtspec.models.families import decoder
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.source import Source

KEYS = (
    ConfigKey(
        "attn_bias",
        value=False,
        default=False,
        otherwise="TensorRT-LLM would add biases that this family lacks",
    ),
)


def config(source: Source) -> dict[str, Any]:
    return {**decoder.config(source), "residual_mlp": False, "remove_duplicated_kv_heads": False}


FAMILY = ModelFamily(
    name="llama",
    check=decoder.check,
    weights=decoder.weights,
    config=config,
    ignored=decoder.IGNORED,
    keys=KEYS,
    reduce_fusion=True,
)
