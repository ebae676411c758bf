"""Defines the sizes of a model, which determine the names and shapes of its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ExpertSizes:
    """The experts that replace each layer's MLP."""

    count: int
    chosen: int
    """The number of experts that the router chooses for each token."""
    intermediate_size: int
    """The width of each expert."""
    shared_intermediate_size: int = 0
    """The width of the shared expert; 0 if there is none."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The sizes from which a family lists its weights: numbers of layers, of heads and of elements."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """The width of the MLP, if each layer has one."""
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_size: int
    tie_word_embeddings: bool
    experts: ExpertSizes | None
    """None for a model whose layers have one MLP each."""

    @property
    def mlps(self) -> Mapping[str, int]:
        """The widths of a layer's MLPs, by their keys in a config."""
        if self.experts is None:
            return {"intermediate_size": self.intermediate_size}
        widths = {"moe_intermediate_size": self.experts.intermediate_size}
        if self.experts.shared_intermediate_size:
            widths["shared_expert_intermediate_size"] = self.experts.shared_intermediate_size
        return widths

    @property
    def computed_width(self) -> int:
        """The width, in elements, of all MLPs of a layer that compute one token."""
        if self.experts is None:
            return self.intermediate_size
        chosen = self.experts.chosen * self.experts.intermediate_size
        return chosen + self.experts.shared_intermediate_size


def layer_sizes(layer: Mapping[str, Any], architecture: str = "", vocab_size: int = 0) -> Sizes:
    """Returns the sizes of decoder layers without experts, from the numbers of a head's configuration."""
    return Sizes(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden_size=layer["hidden_size"],
        intermediate_size=layer["intermediate_size"],
        num_hidden_layers=layer["num_hidden_layers"],
        num_attention_heads=layer["num_attention_heads"],
        num_key_value_heads=layer["num_key_value_heads"],
        head_size=layer["head_dim"],
        tie_word_embeddings=False,
        experts=None,
    )
