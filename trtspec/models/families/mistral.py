"""Mistral: `MistralForCausalLM`, which is TensorRT-LLM's LLaMA class with a sliding window.

TensorRT-LLM's conversion drops `sliding_window` (`models/llama/config.py`), and its engines attend to the
whole text unless the runtime is given a window: `max_attention_window` of `KvCacheConfig`, which is
`max_attention_window_size` in Triton. The checkpoint keeps the number under its Hugging Face name.
TensorRT-LLM copies that key into the engine's config, where the serving side reads it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.models.families import decoder, llama
from trtspec.models.families.family import ModelFamily
from trtspec.models.families.window import of_all_layers
from trtspec.models.source import Source

window = partial(of_all_layers, default=4096)


def check(source: Source) -> None:
    decoder.check(source)
    window(source)


def config(source: Source) -> dict[str, Any]:
    return {**llama.config(source), "sliding_window": window(source)}


FAMILY = ModelFamily(
    name="mistral",
    check=check,
    weights=decoder.weights,
    config=config,
    ignored=decoder.IGNORED,
    keys=llama.KEYS,
    window=window,
)
