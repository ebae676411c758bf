"""What the ranks of a checkpoint must hold, cut by torch from the original tensors."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad


def ranks_of(tensors: dict[str, Tensor], config: dict[str, Any], tp: int, pp: int) -> list[dict[str, Tensor]]:
    """The tensors of each rank, from a Llama's `state_dict` and `config.json`."""
    vocabulary = {
        name: cut(pad(tensors[theirs], (0, 0, 0, -len(tensors[theirs]) % tp)), tp, 0)
        for name, theirs in (
            ("transformer.vocab_embedding.weight", "model.embed_tokens.weight"),
            (
                "lm_head.weight",
                "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight",
            ),
        )
    }
    ranks = []
    stages = torch.arange(config["num_hidden_layers"]).tensor_split(pp)
    for stage, layers in enumerate(stages):
        for rank in range(tp):
            found = {}
            if stage == 0:
                name = "transformer.vocab_embedding.weight"
                found[name] = vocabulary[name][rank]
            for local, layer in enumerate(layers.tolist()):
                cuts = layer_of(tensors, config, layer, tp)
                found |= {f"transformer.layers.{local}.{name}": cuts[name][rank] for name in cuts}
            if stage == pp - 1:
                found["transformer.ln_f.weight"] = tensors["model.norm.weight"]
                found["lm_head.weight"] = vocabulary["lm_head.weight"][rank]
            ranks.append(found)
    return ranks


def layer_of(
    tensors: dict[str, Tensor], config: dict[str, Any], layer: int, tp: int
) -> dict[str, list[Tensor]]:
    """A layer's tensors, of all tensor-parallel ranks each."""
    prefix = f"model.layers.{layer}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    size = config["head_dim"]
    query = own["self_attn.q_proj.weight"].unflatten(0, (-1, size))
    key, value = (own[f"self_attn.{name}_proj.weight"].unflatten(0, (-1, size)) for name in "kv")
    copies = max(tp // config["num_key_value_heads"], 1)
    key, value = key.repeat_interleave(copies, 0), value.repeat_interleave(copies, 0)
    fused = zip(query.chunk(tp), key.chunk(tp), value.chunk(tp), strict=True)
    return {
        "input_layernorm.weight": [own["input_layernorm.weight"]] * tp,
        "attention.qkv.weight": [torch.cat(parts).flatten(0, 1) for parts in fused],
        "attention.dense.weight": cut(own["self_attn.o_proj.weight"], tp, 1),
        "post_layernorm.weight": [own["post_attention_layernorm.weight"]] * tp,
        "mlp.fc.weight": cut(own["mlp.gate_proj.weight"], tp, 0),
        "mlp.gate.weight": cut(own["mlp.up_proj.weight"], tp, 0),
        "mlp.proj.weight": cut(own["mlp.down_proj.weight"], tp, 1),
    }


def cut(tensor: Tensor, parts: int, dimension: int) -> list[Tensor]:
    return list(tensor.chunk(parts, dimension))


def quantized(tensor: Tensor, scale: Tensor) -> Tensor:
    return (tensor.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)
