"""Qwen2 and Qwen2.5: `Qwen2ForCausalLM` as TensorRT-LLM's `models/qwen/{config,convert}.py` have it."""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.checkpoint.families import decoder
from trtspec.checkpoint.families.family import Family
from trtspec.checkpoint.source import Source
from trtspec.errors import ModelError


def check(source: Source) -> None:
    decoder.check(source)
    if source.sliding_layers:
        some = f"{source.sliding_layers} of {source.num_hidden_layers} layers have a sliding window"
        raise ModelError(source.folder / "config.json", f"{some}; TensorRT-LLM has none for Qwen")


def config(source: Source, *, qwen_type: str = "qwen2") -> dict[str, Any]:
    """Every key of `QWenConfig` said aloud: its defaults are those of the first Qwen."""
    return {
        **decoder.config(source),
        "qwen_type": qwen_type,
        "attn_bias": qwen_type == "qwen2",
        "use_logn_attn": False,
        "num_labels": 1,
        "seq_length": 8192,
        "moe_intermediate_size": 0,
        "moe_shared_expert_intermediate_size": 0,
    }


FAMILY = Family("qwen2", check, partial(decoder.weights, qkv_bias=True), config, decoder.IGNORED)
