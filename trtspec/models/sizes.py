"""The sizes of a model, from which the names and shapes of its weights follow."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes from which a family lists its weights: numbers of layers, of heads and of elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    tie_word_embeddings: bool
