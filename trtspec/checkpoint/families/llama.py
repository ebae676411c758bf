"""Llama 2 to 3.3: `LlamaForCausalLM` as TensorRT-LLM's `models/llama/{config,convert}.py` have it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from trtspec.checkpoint.families.family import Family, Part, Split, Weight
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
    hidden, vocabulary = source.hidden_size, source.vocab_size
    embedding = Part("model.embed_tokens.weight", (vocabulary, hidden), Split.VOCAB)
    yield Weight("transformer.vocab_embedding.weight", (embedding,))
    for layer in range(source.num_hidden_layers):
        yield from _layer(source, layer)
    yield Weight("transformer.ln_f.weight", (Part("model.norm.weight", (hidden,)),))
    tied = source.tie_word_embeddings
    head = embedding if tied else Part("lm_head.weight", (vocabulary, hidden), Split.VOCAB)
    yield Weight("lm_head.weight", (head,))


def _layer(source: Source, layer: int) -> Iterator[Weight]:
    hidden, inner = source.hidden_size, source.intermediate_size
    queries = source.num_attention_heads * source.head_size
    keys = source.num_key_value_heads * source.head_size

    def norm(name: str, theirs: str) -> Weight:
        return Weight(name, (part(theirs, (hidden,), Split.WHOLE),), layer)

    def linear(name: str, *parts: Part) -> Weight:
        return Weight(name, parts, layer, linear=True)

    def part(name: str, shape: tuple[int, ...], split: Split) -> Part:
        return Part(f"model.layers.{layer}.{name}.weight", shape, split)

    yield norm("input_layernorm.weight", "input_layernorm")
    yield linear(
        "attention.qkv.weight",
        part("self_attn.q_proj", (queries, hidden), Split.HEADS),
        part("self_attn.k_proj", (keys, hidden), Split.HEADS),
        part("self_attn.v_proj", (keys, hidden), Split.HEADS),
    )
    yield linear("attention.dense.weight", part("self_attn.o_proj", (hidden, queries), Split.COLUMNS))
    yield norm("post_layernorm.weight", "post_attention_layernorm")
    # TensorRT-LLM's `fc` goes through the activation, and its `gate` is what it is multiplied with.
    yield linear("mlp.fc.weight", part("mlp.gate_proj", (inner, hidden), Split.ROWS))
    yield linear("mlp.gate.weight", part("mlp.up_proj", (inner, hidden), Split.ROWS))
    yield linear("mlp.proj.weight", part("mlp.down_proj", (hidden, inner), Split.COLUMNS))


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
