"""Reads `longrope` (arXiv 2402.13753), which divides each rotary pair's frequency by a factor of its own.

A model has two lists of factors: for texts up to its first training length, and for longer ones.
TensorRT-LLM's attention (`useLongRoPECache` of its gptAttentionPlugin.cpp) uses the second list for all
requests of a step if the longest prompt chunk among them exceeds that length. In a round of drafts the chunk
is short, even if the KV cache holds a long text. So engines are built only for texts with the first list.
"""

from __future__ import annotations

from math import inf
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.source import HfConfig, Source

KIND = "longrope"
_LISTS = ("short_factor", "long_factor")
_KEYS = {"type", "rope_type", "original_max_position_embeddings", *_LISTS}
_REPAIR = "choose a model without longrope, such as microsoft/phi-4 or microsoft/Phi-3-mini-4k-instruct"


def check(source: Source) -> None:
    """Raises ModelError for another scaling of positions, or an incomplete one."""
    scaling = source.rotary_scaling
    if scaling is None:
        return
    file, kind = source.config.file, source.rope_type
    if not scaling.get("type", kind) == kind == KIND:
        problem = f"rope type {kind!r} is not supported for {source.architecture}, only {KIND!r}"
        raise ModelError(file, problem, _REPAIR)
    if others := sorted(scaling.keys() - _KEYS):
        raise ModelError(
            file, f"{', '.join(others)} of rope type {KIND!r}: TensorRT-LLM ignores it and uses the default"
        )
    pairs = turned(source) // 2
    for name in _LISTS:
        factors = scaling.get(name)
        if not isinstance(factors, list) or len(factors) != pairs or not all(map(_is_factor, factors)):
            raise ModelError(file, f"{name} of rope type {KIND!r} must be {pairs} positive numbers")
    original(source)


def config(source: Source) -> dict[str, Any]:
    """The keys of TensorRT-LLM's `models/phi3/config.py`, which other models do not have."""
    scaling = source.rotary_scaling
    if scaling is None:
        return {}
    return {
        "position_embedding_type": "long_rope",
        "original_max_position_embeddings": original(source),
        "longrope_scaling_short_factors": list(scaling["short_factor"]),
        "longrope_scaling_long_factors": list(scaling["long_factor"]),
    }


def original(source: Source) -> int | None:
    """Returns the length in tokens up to which texts use the first factors; None without `longrope`.

    Raises ModelError if the config has no such length, or two different ones.
    """
    if source.rope_type != KIND:
        return None
    key, file = "original_max_position_embeddings", source.config.file
    places = (source.config, HfConfig(file, source.rotary_scaling or {}))
    found = {place.size(key) for place in places if place.content.get(key) is not None}
    if len(found) > 1:
        raise ModelError(file, f"{key} must be one number, not {sorted(found)}")
    return found.pop() if found else source.config.size(key)


def turned(source: Source) -> int:
    """Returns the number of rotated elements of each head."""
    return int(source.head_size * source.partial_rotary_factor)


def _is_factor(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < inf
