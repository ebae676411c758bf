"""Sliding windows, by the rules and defaults of transformers' configuration classes."""

from __future__ import annotations

from trtspec.base.errors import ModelError
from trtspec.models.source import Source

_SLIDING, _FULL = "sliding_attention", "full_attention"


def of_all_layers(source: Source, default: int | None) -> int | None:
    """The sliding window of all layers in tokens, None if they have none.

    `default` is the window of a config that does not name one. Raises ModelError if layers differ.
    """
    config, layers = source.config, source.num_hidden_layers
    window = config.content.get("sliding_window", default)
    if window is None:
        return None
    kinds = config.get("layer_types", list, [_SLIDING] * layers)
    if kinds.count(_SLIDING) != layers:
        some = f"{kinds.count(_SLIDING)} of {layers} layers have a sliding window"
        raise ModelError(config.file, f"{some}; supported for {source.architecture}: all or none")
    return config.size("sliding_window", window)


def of_no_layer(source: Source) -> None:
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


def of_most_layers(source: Source) -> int:
    """The window of a Gemma in tokens, whose other layers see the whole text; raises as `pattern`."""
    pattern(source)
    return source.config.size("sliding_window")


def pattern(source: Source) -> int:
    """The number of a Gemma's layers in each group, the last of which sees the whole text.

    It is that of `layer_types`, or else `sliding_window_pattern`, whose defaults are 2 for Gemma 2 and 6 for
    Gemma 3. Raises ModelError for layers that follow no pattern.
    """
    config, layers = source.config, source.num_hidden_layers
    named = config.size("sliding_window_pattern", 2 if source.model_type == "gemma2" else 6)
    kinds = config.get("layer_types", list, _kinds(layers, named))
    found = kinds.index(_FULL) + 1 if _FULL in kinds else layers + 1
    if kinds != _kinds(layers, found):
        raise ModelError(config.file, f"layer_types follow no pattern: {', '.join(map(str, kinds))}")
    return found


def _kinds(layers: int, each: int) -> list[str]:
    return [_SLIDING if (layer + 1) % each else _FULL for layer in range(layers)]
