"""Llama 2 to 3.3: `LlamaForCausalLM` as TensorRT-LLM's `models/llama/{config,convert}.py` have it."""

from __future__ import annotations

from typing import Any

from trtspec.checkpoint.families import decoder
from trtspec.checkpoint.families.family import Family
from trtspec.checkpoint.source import Source


def config(source: Source) -> dict[str, Any]:
    return {
        **decoder.config(source),
        "attn_bias": False,
        "residual_mlp": False,
        "remove_duplicated_kv_heads": False,
    }


FAMILY = Family("llama", decoder.check, decoder.weights, config, decoder.IGNORED)
