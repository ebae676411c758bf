"""Sliding windows, by the rules and defaults of transformers' configuration classes."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.base.errors import ModelError
from trtspec.models.source import Source

_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Alternating:
    """A sliding window of most layers; the others see the whole text."""

    window: int
    """The number of tokens in the window."""
    pattern: int
    """The last of each group of this many layers sees the whole text."""


def of_all_layers(source: Source, default: int | None) -> int | None:
    """The sliding window of all layers in tokens, None if they have none.

    `default` is the window of a config that does not name one. Raises ModelError if layers differ.
    """
    config, layers = source.config, source.num_hidden_layers
    is_named = "sliding_window" in config.content
    if (config.content["sliding_window"] if is_named else default) is None:
        return None
    kinds = config.get("layer_types", list, [_SLIDING] * layers)
    if kinds.count(_SLIDING) != layers:
        some = f"{kinds.count(_SLIDING)} of {layers} layers have a sliding window"
        raise ModelError(config.file, f"{some}; supported for {source.architecture}: all or none")
    return config.size("sliding_window") if is_named else default


def check_none(source: Source) -> None:
    """Raises ModelError for a Qwen that uses a window: its layers from `max_window_layers` on do."""
    config, layers = source.config, source.num_hidden_layers
    if not config.get("use_sliding_window", bool, False):
        return
    if config.content.get("sliding_window", 4096) is None:
        return
    full = config.get("max_window_layers", int, 28)
    sliding = config.get("layer_types", list, [_SLIDING] * max(layers - full, 0)).count(_SLIDING)
    if sliding:
        some = f"{sliding} of {layers} layers have a sliding window"
        raise ModelError(config.file, f"{some}; TensorRT-LLM has none for Qwen")


def alternating(source: Source) -> Alternating:
    """The window of a Gemma; raises ModelError for layers that follow no pattern.

    The pattern is that of `layer_types`, or else `sliding_window_pattern`, whose defaults are 2 for Gemma 2
    and 6 for Gemma 3.
    """
    config, layers = source.config, source.num_hidden_layers
    named = config.size("sliding_window_pattern", 2 if source.model_type == "gemma2" else 6)
    kinds = config.get("layer_types", list, _kinds(layers, named))
    pattern = kinds.index(_FULL) + 1 if _FULL in kinds else layers + 1
    if kinds != _kinds(layers, pattern):
        raise ModelError(config.file, f"layer_types follow no pattern: {', '.join(map(str, kinds))}")
    return Alternating(config.size("sliding_window"), pattern)


def _kinds(layers: int, pattern: int) -> list[str]:
    return [_SLIDING if (layer + 1) % pattern else _FULL for layer in range(layers)]
