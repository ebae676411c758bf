"""The model that a `PretrainedConfig` describes; the conversion's own tables then say what it must have."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

from trtspec.checkpoint import mapping as ranks
from trtspec.checkpoint.families import FAMILIES
from trtspec.checkpoint.source import Source

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")


def source_of(config: Mapping[str, Any]) -> Source | None:
    """A source with nothing but sizes; None for a family that trtspec lacks, or without the sizes."""
    if config.get("architecture") not in FAMILIES or not all(_is_size(config.get(key)) for key in _SIZES):
        return None
    heads = config["num_attention_heads"]
    return Source(
        folder=Path(),
        architecture=config["architecture"],
        model_type="",
        dtype=str(config.get("dtype")),
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        num_hidden_layers=config["num_hidden_layers"],
        num_attention_heads=heads,
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_size") or config["hidden_size"] // heads,
        hidden_act="",
        norm_epsilon=0.0,
        max_position_embeddings=0,
        rotary_base=0.0,
        rotary_scaling=None,
        partial_rotary_factor=1.0,
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        sliding_window=None,
        sliding_layers=0,
        attention_bias=False,
        mlp_bias=False,
        bos_id=None,
        pad_id=None,
        end_ids=(),
        scheme=None,
        tensors={},
    )


def parameters(source: Source) -> int:
    """Numbers of all weights of the model, what ranks share counted once."""
    parts = {part for weight in FAMILIES[source.architecture].weights(source) for part in weight.parts}
    return sum(prod(part.shape) for part in parts)


def mapping_of(config: Mapping[str, Any]) -> ranks.Mapping:
    """One rank where the config does not say."""
    sizes = section(config, "mapping")
    return ranks.Mapping(*(sizes[key] if _is_size(sizes.get(key)) else 1 for key in ("tp_size", "pp_size")))


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object within the config, empty if it is not there."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _is_size(value: Any) -> bool:
    return type(value) is int and value > 0
