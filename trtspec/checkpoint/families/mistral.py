"""Mistral: `MistralForCausalLM`, which is TensorRT-LLM's LLaMA class, and a sliding window beside it.

TensorRT-LLM's conversion drops `sliding_window` (`models/llama/config.py`), and its engines see the whole
text until the runtime is told of a window: `max_attention_window` of `KvCacheConfig`, which is
`max_attention_window_size` in Triton. The checkpoint keeps the number under its Hugging Face name, which
TensorRT-LLM carries through to the engine as one more key: whoever serves it reads it there.
"""

from __future__ import annotations

from typing import Any

from trtspec.checkpoint.families import decoder, llama
from trtspec.checkpoint.families.family import Family
from trtspec.checkpoint.source import Source
from trtspec.errors import ModelError


def check(source: Source) -> None:
    decoder.check(source)
    if source.sliding_window is not None and source.sliding_layers != source.num_hidden_layers:
        some = f"{source.sliding_layers} of {source.num_hidden_layers} layers have a sliding window"
        raise ModelError(source.folder / "config.json", f"{some}; supported for Mistral: all or none")


def config(source: Source) -> dict[str, Any]:
    return {**llama.config(source), "sliding_window": source.sliding_window}


FAMILY = Family("mistral", check, decoder.weights, config, decoder.IGNORED)
