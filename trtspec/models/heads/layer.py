"""Reads the configuration of a head's decoder layers, and fills in the keys that its folder leaves out."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.source import HfConfig, read_rope

MODEL_TYPES = ("llama", "qwen3")
"""The layers of heads that vLLM serves (`vllm/transformers_utils/configs/speculators/algos.py`)."""


def read_layer(config: HfConfig) -> Mapping[str, Any]:
    """Reads a layer's configuration, with transformers' defaults; raises ModelError for another kind."""
    kind = config.get("model_type", str, "llama")
    if kind not in MODEL_TYPES:
        problem = (
            f"has decoder layers of {kind}; trtspec reads heads with layers of {' or '.join(MODEL_TYPES)}"
        )
        raise ModelError(config.file, problem, "use a head with such layers; its target may be of any family")
    others = sorted({*config.get("layer_types", list, [])} - {"full_attention"})
    if others:
        problem = f"has layers with {others[0]}; trtspec reads heads with full attention only"
        raise ModelError(config.file, problem)
    if (share := read_rope(config)[2]) != 1.0:
        raise ModelError(config.file, f"partial_rotary_factor is {share}; a head's must be 1")
    return layer_values(config)


def layer_values(config: HfConfig) -> Mapping[str, Any]:
    """Reads a layer's configuration of any kind, with transformers' defaults."""
    hidden_size, heads = config.size("hidden_size"), config.size("num_attention_heads")
    rope_theta, rope_scaling, _ = read_rope(config)
    return MappingProxyType(
        {
            "model_type": config.get("model_type", str, "llama"),
            "hidden_size": hidden_size,
            "intermediate_size": config.size("intermediate_size"),
            "num_hidden_layers": config.size("num_hidden_layers", 1),
            "num_attention_heads": heads,
            "num_key_value_heads": config.size("num_key_value_heads", heads),
            "head_dim": config.size("head_dim", hidden_size // heads),
            "hidden_act": config.get("hidden_act", str, "silu"),
            "rms_norm_eps": config.number("rms_norm_eps", 1e-6),
            "max_position_embeddings": config.size("max_position_embeddings", 2048),
            "rope_theta": rope_theta,
            "rope_scaling": rope_scaling,
            "attention_bias": config.get("attention_bias", bool, False),
        }
    )


def layer_shapes(layer: Mapping[str, Any], number: int, width: int) -> dict[str, tuple[int, ...]]:
    """Returns the shapes of a decoder layer's weights by name; its attention reads vectors of `width`."""
    hidden, inner, head = layer["hidden_size"], layer["intermediate_size"], layer["head_dim"]
    queries, keys = layer["num_attention_heads"] * head, layer["num_key_value_heads"] * head
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (queries, width),
        "self_attn.k_proj.weight": (keys, width),
        "self_attn.v_proj.weight": (keys, width),
        "self_attn.o_proj.weight": (hidden, queries),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "post_attention_layernorm.weight": (hidden,),
    }
    if layer["attention_bias"]:
        for name, size in (("q_proj", queries), ("k_proj", keys), ("v_proj", keys)):
            shapes[f"self_attn.{name}.bias"] = (size,)
    if layer["model_type"] == "qwen3":
        shapes |= {"self_attn.q_norm.weight": (head,), "self_attn.k_norm.weight": (head,)}
    return {f"layers.{number}.{name}": shape for name, shape in shapes.items()}
