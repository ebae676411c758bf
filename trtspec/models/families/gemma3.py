"""Converts Gemma 3's text models: `Gemma3ForCausalLM`, for TensorRT-LLM's `models/gemma`.

It has norms of q and k instead of soft-capped scores, and layers with a window have a rotary base of their
own. Multimodal models, which most of Gemma 3 are, are `Gemma3ForConditionalGeneration`, and that class does
not read them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder, gemma2
from trtspec.models.families.family import ModelFamily
from trtspec.models.source import Source


def check(source: Source) -> None:
    """Raises ModelError for models that would be converted wrongly."""
    gemma2.check(source)
    config = source.config
    if gemma2.cap(source, "attn_logit_softcapping") is not None:
        raise ModelError(config.file, "attn_logit_softcapping: TensorRT-LLM's Gemma 3 has none")
    if config.get("use_bidirectional_attention", bool, False):
        raise ModelError(config.file, "use_bidirectional_attention belongs to models that generate no text")


def config(source: Source) -> dict[str, Any]:
    found = {
        **gemma2.config(source),
        "rope_local_base_freq": source.config.number("rope_local_base_freq", 1e4),
    }
    del found["attn_logit_softcapping"]
    return found


FAMILY = ModelFamily(
    name="gemma3_text",
    check=check,
    weights=partial(decoder.weights, qk_norm=True, shift=1.0, sandwich=True),
    config=config,
    ignored=decoder.IGNORED,
    keys=gemma2.KEYS,
    window=gemma2.window,
    alternates=True,
    swiglu=False,
    norms_heads=True,
)
