"""Llama 2 to 3.3: `LlamaForCausalLM` as TensorRT-LLM's `models/llama/{config,convert}.py` have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtspec.checkpoint.families.family import Family, Part, Weight
from trtspec.checkpoint.source import Source
from trtspec.errors import ModelError

ROPE_TYPES = ("linear", "dynamic", "llama3", "yarn")


def check(source: Source) -> None:
    """Refuses what this family's conversion would get wrong."""
    config = source.folder / "config.json"
    if source.hidden_act != "silu":
        raise ModelError(
            config, f"hidden_act {source.hidden_act} is not silu, the only one of Llama in TensorRT-LLM"
        )
    if source.attention_bias or source.mlp_bias:
        raise ModelError(config, "attention_bias and mlp_bias are not supported for Llama")
    if source.num_attention_heads % max(source.num_key_value_heads, 1):
        heads = (
            f"{source.num_attention_heads} attention heads over {source.num_key_value_heads} key-value heads"
        )
        raise ModelError(config, f"{heads} do not divide")
    if source.rotary_scaling is not None:
        kind = source.rotary_scaling.get("rope_type", source.rotary_scaling.get("type"))
        if kind not in ROPE_TYPES:
            raise ModelError(config, f"rope type {kind!r} is not one of {', '.join(ROPE_TYPES)}")


def weights(source: Source) -> Iterator[Weight]:
    """Every tensor of the checkpoint. All matrices are [out, in] in both worlds; nothing is transposed."""
    hidden, inner = source.hidden_size, source.intermediate_size
    queries = source.num_attention_heads * source.head_size
    keys = source.num_key_value_heads * source.head_size
    embedding = Part("model.embed_tokens.weight", (source.vocab_size, hidden))
    yield Weight("transformer.vocab_embedding.weight", (embedding,))
    for layer in range(source.num_hidden_layers):
        of, to = f"model.layers.{layer}.", f"transformer.layers.{layer}."
        yield Weight(to + "input_layernorm.weight", (Part(of + "input_layernorm.weight", (hidden,)),))
        q_k_v = (("q", queries), ("k", keys), ("v", keys))
        parts = tuple(Part(f"{of}self_attn.{name}_proj.weight", (rows, hidden)) for name, rows in q_k_v)
        yield Weight(to + "attention.qkv.weight", parts)
        yield Weight(
            to + "attention.dense.weight", (Part(of + "self_attn.o_proj.weight", (hidden, queries)),)
        )
        yield Weight(to + "post_layernorm.weight", (Part(of + "post_attention_layernorm.weight", (hidden,)),))
        # TensorRT-LLM's `fc` goes through the activation, and its `gate` is what it is multiplied with.
        yield Weight(to + "mlp.fc.weight", (Part(of + "mlp.gate_proj.weight", (inner, hidden)),))
        yield Weight(to + "mlp.gate.weight", (Part(of + "mlp.up_proj.weight", (inner, hidden)),))
        yield Weight(to + "mlp.proj.weight", (Part(of + "mlp.down_proj.weight", (hidden, inner)),))
    yield Weight("transformer.ln_f.weight", (Part("model.norm.weight", (hidden,)),))
    head = embedding if source.tie_word_embeddings else Part("lm_head.weight", (source.vocab_size, hidden))
    yield Weight("lm_head.weight", (head,))


def config(source: Source) -> dict[str, Any]:
    return {
        "mlp_bias": False,
        "attn_bias": False,
        "rotary_base": source.rotary_base,
        "rotary_scaling": dict(source.rotary_scaling) if source.rotary_scaling is not None else None,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
        "remove_duplicated_kv_heads": False,
        "tie_word_embeddings": source.tie_word_embeddings,
    }


FAMILY = Family(
    name="llama",
    check=check,
    weights=weights,
    config=config,
    ignored=re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq"),
)
