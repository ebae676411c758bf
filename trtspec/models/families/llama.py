"""Llama 2 to 3.3, Mistral, Mixtral, Granite: TensorRT-LLM's LLaMA class (`models/llama/{config,convert}.py`).

TensorRT-LLM's conversion drops `sliding_window`, and its engines attend to the whole text unless the runtime
is given a window: `max_attention_window` of `KvCacheConfig`, which is `max_attention_window_size` in Triton.
The checkpoint keeps the number under its Hugging Face name. TensorRT-LLM copies that key into the engine's
config, where the serving side reads it.

Granite multiplies embedding, scores, residuals and logits with numbers of its own. TensorRT-LLM's
`attention_multiplier` is a factor beside the usual 1/sqrt(head size), and transformers' is in place of it.
So 1.0 differs too, which TensorRT-LLM's own conversion takes for the usual scale. `reduce_fusion` would lose
the factor of the residuals; `trtllm-build` switches it off for every Granite.
"""

from __future__ import annotations

from functools import partial
from math import sqrt
from typing import Any

from trtspec.models.families import decoder
from trtspec.models.families.family import ModelFamily
from trtspec.models.source import Source


def _llama(source: Source) -> dict[str, Any]:
    return {**decoder.config(source), "residual_mlp": False, "remove_duplicated_kv_heads": False}


def _mistral(source: Source) -> dict[str, Any]:
    return {**_llama(source), "sliding_window": MISTRAL.window(source)}


def _mixtral(source: Source) -> dict[str, Any]:
    moe = decoder.moe_config(source, renormalized=True)
    return {**_llama(source), **moe, "sliding_window": MIXTRAL.window(source)}


def _granite(source: Source) -> dict[str, Any]:
    names = (*GRANITE.needs[:3], "logits_scaling")
    embedding, scores, residual, divisor = (source.config.number(name, 1.0) for name in names)
    found = (embedding, scores * sqrt(source.head_size), residual, 1 / divisor)
    return {**_llama(source), **dict(zip(GRANITE.needs, found, strict=True))}


LLAMA = ModelFamily(
    name="llama",
    check=decoder.check,
    weights=decoder.weights,
    config=_llama,
    keys=(decoder.NO_BIASES,),
    reduce_fusion=True,
)
MISTRAL = ModelFamily(
    name="mistral",
    check=decoder.check,
    weights=decoder.weights,
    config=_mistral,
    keys=(decoder.NO_BIASES,),
    window=partial(decoder.window, default=4096),
)
MIXTRAL = ModelFamily(
    name="mixtral",
    check=decoder.check,
    weights=partial(
        decoder.weights, mlp=decoder.ExpertNames("block_sparse_moe", gate="w1", up="w3", down="w2").weights
    ),
    config=_mixtral,
    keys=(decoder.NO_BIASES, decoder.SWIGLU),
    window=partial(decoder.window, default=None),
    experts=True,
    fused_gate=True,
)
GRANITE = ModelFamily(
    name="granite",
    check=decoder.check,
    weights=decoder.weights,
    config=_granite,
    keys=(decoder.NO_BIASES,),
    needs=("embedding_multiplier", "attention_multiplier", "residual_multiplier", "output_multiplier_scale"),
)
