"""Gemma 2 and Gemma 3's text models: TensorRT-LLM's Gemma class (`models/gemma/{config,convert,model}.py`).

A norm multiplies with 1 + w, and the checkpoint holds 1 + w. Attention and MLP each have a norm before and
after, and most layers see only `sliding_window` tokens. TensorRT-LLM leaves that to the runtime, which keeps
no KV cache of an alternating window for the next round. So engines are built for texts within the window.

Gemma 2 soft-caps scores and logits. Gemma 3 has norms of q and k instead of soft-capped scores, and layers
with a window have a rotary base of their own. Multimodal models, which most of Gemma 3 are, are
`Gemma3ForConditionalGeneration`, and that class does not read them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.source import Source

_NEEDED = ("head_dim", "num_key_value_heads", "query_pre_attn_scalar", "rms_norm_eps", "rope_theta")
_FULL = "full_attention"
_KEYS = (
    # TensorRT-LLM's `gelu` is this activation (`ACT2FN` of functional.py), and by another name of it
    # `fuse_gate_mlp` (models/modeling_utils.py) leaves the two matrices of an MLP apart.
    ConfigKey(
        "hidden_act",
        value="gelu",
        default="gelu",
        otherwise="TensorRT-LLM would use another activation, or would not fuse the MLP",
    ),
    decoder.NO_BIASES,
    ConfigKey(
        "inter_layernorms",
        value=True,
        default=True,
        otherwise="the torch backend would leave out the norms after attention and MLP",
    ),
)


def _check_gemma2(source: Source, scaling: str | None = None) -> None:
    """Raises ModelError for models that would be converted wrongly.

    The defaults of the other families are not Gemma's. Positions may have this `scaling` alone.
    """
    decoder.check(source, activation="gelu_pytorch_tanh")
    missing = next((key for key in _NEEDED if source.config.content.get(key) is None), None)
    if missing:
        raise ModelError(source.config.file, f"has no {missing}")
    if source.rope_type not in (None, scaling):
        problem = f"rope type {source.rope_type!r} is not supported for {source.architecture}"
        raise ModelError(source.config.file, problem)


def _check_gemma3(source: Source) -> None:
    """Raises ModelError for models that would be converted wrongly.

    TensorRT-LLM scales the positions of layers without a window alone, as transformers does, but its tables
    for other scalings than `linear` lack those of the others (`layers/attention.py`).
    """
    _check_gemma2(source, "linear")
    config = source.config
    if _cap(source, "attn_logit_softcapping") is not None:
        raise ModelError(config.file, "attn_logit_softcapping: TensorRT-LLM's Gemma 3 has none")
    if config.get("use_bidirectional_attention", bool, False):
        raise ModelError(config.file, "use_bidirectional_attention belongs to models that generate no text")


def _gemma2(source: Source) -> dict[str, Any]:
    of_gemma = source.config
    return {
        "mlp_bias": False,
        "rotary_base": source.rotary_base,
        "rotary_scaling": dict(source.rotary_scaling) if source.rotary_scaling else None,
        "query_pre_attn_scalar": of_gemma.number("query_pre_attn_scalar", 0.0),
        "final_logit_softcapping": _cap(source, "final_logit_softcapping"),
        "attn_logit_softcapping": _cap(source, "attn_logit_softcapping"),
        "_sliding_window_pattern": _pattern(source),
        "sliding_window": _window(source),
        "tie_word_embeddings": source.tie_word_embeddings,
    }


def _gemma3(source: Source) -> dict[str, Any]:
    found = _gemma2(source)
    del found["attn_logit_softcapping"]
    return {**found, "rope_local_base_freq": source.config.number("rope_local_base_freq", 1e4)}


def _cap(source: Source, key: str) -> float | None:
    """The soft cap of scores or logits; None without one."""
    return source.config.number(key, 0.0) if source.config.content.get(key) is not None else None


def _window(source: Source) -> int:
    """The window of a Gemma in tokens, whose other layers see the whole text; raises as `_pattern`."""
    _pattern(source)
    return source.config.size("sliding_window")


def _pattern(source: Source) -> int:
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
    return [decoder.SLIDING if (layer + 1) % each else _FULL for layer in range(layers)]


GEMMA2 = ModelFamily(
    name="gemma2",
    check=_check_gemma2,
    weights=partial(decoder.weights, shift=1.0, sandwich=True),
    config=_gemma2,
    keys=_KEYS,
    window=_window,
    alternates=True,
    swiglu=False,
)
GEMMA3 = ModelFamily(
    name="gemma3_text",
    check=_check_gemma3,
    weights=partial(decoder.weights, qk_norm=True, shift=1.0, sandwich=True),
    config=_gemma3,
    keys=_KEYS,
    window=_window,
    alternates=True,
    swiglu=False,
    norms_heads=True,
)
