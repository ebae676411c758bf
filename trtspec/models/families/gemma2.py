"""Gemma 2: `Gemma2ForCausalLM` as TensorRT-LLM's `models/gemma/{config,convert,model}.py` have it.

A norm multiplies with 1 + w, which is what the checkpoint holds. Attention and MLP stand between two norms
each, and scores and logits are squashed. Each second layer sees `sliding_window` tokens only: TensorRT-LLM
leaves that to the runtime, which keeps no KV cache of an alternating window for the next round, so that
engines are built for texts that are not longer.
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
    ConfigKey("hidden_act", value="gelu", default="gelu", otherwise="the MLP is another, or is not fused"),
    ConfigKey("attn_bias", value=False, default=False, otherwise="TensorRT-LLM adds biases that it has not"),
    ConfigKey(
        "inter_layernorms",
        value=True,
        default=True,
        otherwise="the torch backend leaves out the norms behind attention and MLP",
    ),
)


def check(source: Source) -> None:
    """Raises ModelError for what the conversion would get wrong.

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
    """The bound to which scores or logits are squashed; None if they are not."""
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
