"""Converts Gemma 2: `Gemma2ForCausalLM`, for TensorRT-LLM's `models/gemma/{config,convert,model}.py`.

A norm multiplies with 1 + w, and the checkpoint holds 1 + w. Attention and MLP each have a norm before and
after, and scores and logits are soft-capped. Every second layer sees only `sliding_window` tokens.
TensorRT-LLM leaves that to the runtime, which keeps no KV cache of an alternating window for the next round.
So engines are built for texts within the window.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from trtspec.base.errors import ModelError
from trtspec.models.families import decoder
from trtspec.models.families.family import ConfigKey, ModelFamily
from trtspec.models.families.window import alternating
from trtspec.models.source import Source

ACTIVATION = "gelu_pytorch_tanh"
NEEDED = ("head_dim", "num_key_value_heads", "query_pre_attn_scalar", "rms_norm_eps", "rope_theta")
KEYS = (
    # TensorRT-LLM's `gelu` is this activation (`ACT2FN` of functional.py), and by another name of it
    # `fuse_gate_mlp` (models/modeling_utils.py) leaves the two matrices of an MLP apart.
    ConfigKey(
        "hidden_act",
        value="gelu",
        default="gelu",
        otherwise="TensorRT-LLM would use another activation, or would not fuse the MLP",
    ),
    ConfigKey(
        "attn_bias",
        value=False,
        default=False,
        otherwise="TensorRT-LLM would add biases that the model lacks",
    ),
    ConfigKey(
        "inter_layernorms",
        value=True,
        default=True,
        otherwise="the torch backend would leave out the norms after attention and MLP",
    ),
)


def check(source: Source) -> None:
    """Raises ModelError for models that would be converted wrongly.

    The defaults of the other families are not Gemma's, and TensorRT-LLM reads no scaling of its positions.
    """
    decoder.check(source, activation=ACTIVATION)
    missing = next((key for key in NEEDED if source.config.content.get(key) is None), None)
    if missing:
        raise ModelError(source.config.file, f"has no {missing}")
    if source.rotary_scaling is not None:
        problem = f"a rope scaling is not supported for {source.architecture}"
        raise ModelError(source.config.file, problem)
    alternating(source)


def config(source: Source) -> dict[str, Any]:
    of_gemma = source.config
    return {
        "mlp_bias": False,
        "rotary_base": source.rotary_base,
        "rotary_scaling": None,
        "query_pre_attn_scalar": of_gemma.number("query_pre_attn_scalar", 0.0),
        "final_logit_softcapping": cap(source, "final_logit_softcapping"),
        "attn_logit_softcapping": cap(source, "attn_logit_softcapping"),
        "_sliding_window_pattern": alternating(source).pattern,
        "sliding_window": alternating(source).window,
        "tie_word_embeddings": source.tie_word_embeddings,
    }


def cap(source: Source, key: str) -> float | None:
    """The soft cap of scores or logits; None without one."""
    return source.config.number(key, 0.0) if source.config.content.get(key) is not None else None


def window(source: Source) -> int | None:
    return alternating(source).window


FAMILY = ModelFamily(
    name="gemma2",
    check=check,
    weights=partial(decoder.weights, shift=1.0, sandwich=True),
    config=config,
    ignored=decoder.IGNORED,
    keys=KEYS,
    window=window,
    alternates=True,
    swiglu=False,
)
