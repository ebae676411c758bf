"""Reads which model a `PretrainedConfig` describes; the conversion's own tables say what that must have."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

from trtspec.checkpoint import mapping as ranks
from trtspec.models.families import FAMILIES
from trtspec.models.families.family import shapes
from trtspec.models.hf_config import LARGEST
from trtspec.models.sizes import ExpertSizes, Sizes

SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
OPTIONAL_SIZES = (
    "num_key_value_heads",
    "head_size",
    "moe_intermediate_size",
    "moe_shared_expert_intermediate_size",
)
MOST_BLOCKS = 1 << 16  # layers times experts, each of which has tensors: far more than any model has


def sizes_of(config: Mapping[str, Any]) -> Sizes | None:
    """The sizes in a config; None for a family that trtspec lacks, or if a size is missing or impossible."""
    family = FAMILIES.get(str(config.get("architecture")))
    if family is None or not all(is_size(config.get(key)) for key in SIZES):
        return None
    if not all(is_size(config[key]) for key in OPTIONAL_SIZES if config.get(key)):
        return None
    heads, experts = config["num_attention_heads"], _experts(config) if family.experts else None
    if family.experts and experts is None:
        return None
    if config["num_hidden_layers"] * (experts.count if experts else 1) > MOST_BLOCKS:
        return None
    return Sizes(
        architecture=config["architecture"],
        **{key: config[key] for key in SIZES},
        num_key_value_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_size") or max(config["hidden_size"] // heads, 1),
        tie_word_embeddings=bool(config.get("tie_word_embeddings")),
        experts=experts,
    )


def parameters(sizes: Sizes) -> int:
    """Returns the number of parameters of the model; what several ranks hold counts once."""
    return sum(map(prod, shapes(FAMILIES[sizes.architecture].weights(sizes)).values()))


def mapping_of(config: Mapping[str, Any]) -> ranks.Mapping:
    """The mapping in a config; a size that it does not have is 1."""
    sizes = section(config, "mapping")
    return ranks.Mapping(*(sizes[key] if is_size(sizes.get(key)) else 1 for key in ("tp_size", "pp_size")))


def section(config: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """The object under a key of the config; an empty one if there is none."""
    found = config.get(key)
    return found if isinstance(found, dict) else {}


def _experts(config: Mapping[str, Any]) -> ExpertSizes | None:
    """The experts in a config, whose widths only TensorRT-LLM's Qwen tells from that of an MLP."""
    moe = section(config, "moe")
    if not (is_size(moe.get("num_experts")) and is_size(moe.get("top_k"))):
        return None
    width = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("moe_shared_expert_intermediate_size") or 0
    return ExpertSizes(moe["num_experts"], moe["top_k"], width, shared)


def is_size(value: Any) -> bool:
    """Returns True if a value of a config can be a size of a model, or of its mapping."""
    return type(value) is int and 0 < value <= LARGEST
