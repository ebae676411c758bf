"""A lean Llama for training on a CPU, with the parameters and names of Hugging Face's LlamaForCausalLM."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

ROPE_THETA = 10000.0
NORM_EPS = 1e-5
MAX_POSITIONS = 1024
BF16 = torch.bfloat16


@dataclass(frozen=True)
class Shape:
    """The sizes of one model; `hidden == heads * 64`."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int

    def hf_config(self) -> dict[str, object]:
        """The model's `config.json`."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.intermediate,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.hidden // self.heads,
            "hidden_act": "silu",
            "max_position_embeddings": MAX_POSITIONS,
            "rope_theta": ROPE_THETA,
            "rms_norm_eps": NORM_EPS,
            "attention_bias": False,
            "mlp_bias": False,
            "attention_dropout": 0.0,
            "tie_word_embeddings": True,
            "initializer_range": 0.02,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "use_cache": True,
            "torch_dtype": "bfloat16",
        }


class Cache:
    """Keys and values of every layer for a batch that grows in step, one position a row."""

    def __init__(self, shape: Shape, rows: int, length: int, dtype: torch.dtype) -> None:
        size = (shape.layers, rows, shape.kv_heads, length, shape.hidden // shape.heads)
        self.keys, self.values = torch.zeros(size, dtype=dtype), torch.zeros(size, dtype=dtype)
        self.used = 0

    def extend(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Store the new positions of one layer; return everything that it holds with them."""
        end = self.used + key.shape[2]
        self.keys[layer, :, :, self.used : end] = key
        self.values[layer, :, :, self.used : end] = value
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]


class Attention(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads, self.kv_heads = shape.heads, shape.kv_heads
        self.head = shape.hidden // shape.heads
        self.q_proj = nn.Linear(shape.hidden, self.heads * self.head, bias=False)
        self.k_proj = nn.Linear(shape.hidden, self.kv_heads * self.head, bias=False)
        self.v_proj = nn.Linear(shape.hidden, self.kv_heads * self.head, bias=False)
        self.o_proj = nn.Linear(self.heads * self.head, shape.hidden, bias=False)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: Cache | None, layer: int) -> Tensor:
        packed = project(x, self.q_proj, self.k_proj, self.v_proj)
        packed = packed.view(*x.shape[:2], -1, self.head).transpose(1, 2)
        turned = rotate(packed[:, : self.heads + self.kv_heads], *rope)
        query, key = turned[:, : self.heads], turned[:, self.heads :]
        value = packed[:, self.heads + self.kv_heads :]
        if cache is not None:
            key, value = cache.extend(layer, key, value)
        key, value = (part.repeat_interleave(self.heads // self.kv_heads, 1) for part in (key, value))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=query.shape[2] > 1)
        return project(mixed.transpose(1, 2).flatten(2), self.o_proj)


class Mlp(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.intermediate, bias=False)
        self.down_proj = nn.Linear(shape.intermediate, shape.hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = project(x, self.gate_proj, self.up_proj).chunk(2, -1)
        return project(F.silu(gate) * up, self.down_proj)


class Layer(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.self_attn = Attention(shape)
        self.mlp = Mlp(shape)
        self.input_layernorm = Norm(shape.hidden)
        self.post_attention_layernorm = Norm(shape.hidden)

    def forward(self, x: Tensor, rope: tuple[Tensor, Tensor], cache: Cache | None, index: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), rope, cache, index)
        y: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return y


class Norm(nn.Module):
    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), NORM_EPS)


class Trunk(nn.Module):
    """Everything but the scores: what Hugging Face calls `model`."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(shape.vocab, shape.hidden)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = Norm(shape.hidden)


class Llama(nn.Module):
    cos: Tensor
    sin: Tensor

    def __init__(self, shape: Shape, generator: torch.Generator) -> None:
        super().__init__()
        self.shape = shape
        self.model = Trunk(shape)
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02, generator=generator)
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                # Each layer adds to the residual stream twice; the sum starts at the size of one.
                weight.data.div_((2 * shape.layers) ** 0.5)
        head = shape.hidden // shape.heads
        turns = ROPE_THETA ** -(torch.arange(0, head, 2) / head)
        angles = torch.arange(MAX_POSITIONS)[:, None] * turns
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens: Tensor, cache: Cache | None = None, dtype: torch.dtype = BF16) -> Tensor:
        """The scores (rows, length, vocab) of what follows each token."""
        start = cache.used if cache else 0
        cos, sin = (table[start : start + tokens.shape[1]].to(dtype) for table in (self.cos, self.sin))
        x = self.model.embed_tokens(tokens).to(dtype)
        for index, layer in enumerate(self.model.layers):
            x = layer(x, (cos, sin), cache, index)
        if cache is not None:
            cache.used += tokens.shape[1]
        return F.linear(self.model.norm(x), self.model.embed_tokens.weight.to(dtype))


def project(x: Tensor, *layers: nn.Linear) -> Tensor:
    """All `layers` applied to `x` in one matrix product, results side by side."""
    weight = layers[0].weight if len(layers) == 1 else torch.cat([layer.weight for layer in layers])
    return F.linear(x, weight.to(x.dtype))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary positions in Llama's half-and-half layout."""
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
