"""The configuration of an engine directory of the torch backend: `config.json` as plain data.

Keys and defaults are those of TensorRT-LLM's engines (`builder.py`) and checkpoints (`models/*/config.py`).
A model that this backend cannot run is refused here, before anything is loaded. Only the keys decide that;
the builder knows the architectures.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Limits
from trtspec.serving.executors.validation import DRAFT_TOKENS_EXTERNAL, engine_config

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# The layers of a mixture of experts that are not quantized.
ROUTERS = ("*router", "*shared_expert_gate")
# Keys with their defaults and the values that run here, of more that TensorRT-LLM knows.
ONLY: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("qwen_type", "qwen2", ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")),
    ("attn_bias", False, (False, True)),
    ("hidden_act", "gelu", ("silu", "swiglu", "gelu", "gelu_pytorch_tanh")),
    ("position_embedding_type", "learned_absolute", ("rope_gpt_neox", "long_rope")),
    ("mlp_bias", False, (False,)),
    ("qk_layernorm", False, (False,)),
    ("residual_mlp", False, (False,)),
    ("use_logn_attn", False, (False,)),
    ("quantization.quant_algo", None, (None, "FP8")),
    ("quantization.kv_cache_quant_algo", None, (None, "FP8")),
    ("quantization.exclude_modules", ["lm_head"], (["lm_head"], ["lm_head", *ROUTERS])),
    ("mapping.cp_size", 1, (1,)),
    ("embedding_sharding_dim", 0, (0,)),
    ("draft.method", None, (None, "eagle3", "eagle", "medusa", "layers")),
    ("moe.normalization_mode", 1, (0, 1)),
    ("mapping.moe_ep_size", 1, (-1, 1)),
)


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """The experts of each layer, some of which a router chooses for each token."""

    count: int
    """The number of experts in a layer."""
    chosen: int
    """The number of experts that the router chooses for a token."""
    width: int
    """The width of each expert in elements."""
    shared_width: int
    """The width of the expert that computes every token in addition; 0 if there is none."""
    renormalized: bool
    """True if the shares of the chosen experts add up to 1."""


@dataclass(frozen=True, slots=True)
class Local:
    """The layers with a sliding window, among others without one."""

    window: int
    """The number of tokens that a token sees, itself included."""
    pattern: int
    """Every layer has the window except each `pattern`-th one."""
    rotary_base: float | None
    """The base of the positions in these layers, without scaling; None if they are as in other layers."""

    def has(self, layer: int) -> bool:
        """Says whether a layer, counted from 0, has the window."""
        return (layer + 1) % self.pattern != 0


@dataclass(frozen=True, slots=True)
class TorchEngineConfig:
    """A decoder and the limits that its engine was built with. Sizes are numbers of elements or tokens."""

    dtype: torch.dtype
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    norm_epsilon: float
    rotary_base: float
    rotary_scaling: dict[str, Any] | None
    rotary_share: float
    """The share of each head, from its beginning, that is rotated by position."""
    qkv_bias: bool
    """True if q, k and v have biases."""
    qk_norm: bool
    """True if each head of q and k is normalized."""
    fused_gate: bool
    """True if `mlp.fc` is two stacked matrices, of which the second has the activation."""
    sliding_window: int | None
    """The number of tokens that a token sees in every layer, itself included; None for all."""
    local: Local | None
    """The layers with a window, if others have none."""
    experts: ExpertConfig | None
    """The experts in place of the MLP; None for an MLP."""
    fp8: bool
    """True if the products of every layer are W8A8."""
    fp8_kv_cache: bool
    norms_after: bool
    """True for norms after attention and MLP too, before their results are added to the states."""
    gelu: bool
    """True if the MLP has a GELU in place of a SiLU."""
    query_scale: float
    """The factor of the queries."""
    embedding_scale: float
    """The factor of the embedding."""
    residual_scale: float
    """The factor of what attention and MLP add to the states."""
    logit_scale: float
    """The factor of the logits."""
    score_cap: float | None
    """The bound of the scores of attention; None for no bound."""
    logit_cap: float | None
    """The bound of the logits; None for no bound."""
    tp_size: int
    """The number of tensor-parallel parts of the weights, which run on one device here."""
    pp_size: int
    """The number of pipeline-parallel parts of the weights, which run on one device here."""
    max_num_tokens: int
    limits: Limits
    draft: Mapping[str, Any] | None = None
    """The `method` and options of a draft inside its target (`dependents`); None for another engine."""


def read_config(engine_dir: Path) -> TorchEngineConfig:
    """Returns the configuration; raises `EngineLoadError` if it is missing, malformed or cannot run here."""
    path = engine_dir / "config.json"
    with engine_config(engine_dir) as document:
        model, build = _Section(path, document["pretrained_config"]), _Section(path, document["build_config"])
    dtype = _checked_dtype(path, model)
    hidden, heads = model.integer("hidden_size"), model.integer("num_attention_heads")
    head_size, local = model.integer("head_size", hidden // heads), _local(model)
    return TorchEngineConfig(
        dtype=dtype,
        vocab_size=model.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=model.integer("intermediate_size", 4 * hidden),
        num_layers=model.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=model.integer("num_key_value_heads", heads),
        head_size=head_size,
        norm_epsilon=float(model.get("norm_epsilon", 1e-5)),
        rotary_base=float(model.get("rotary_base", 10000.0)),
        rotary_scaling=_scaling(model),
        rotary_share=float(model.get("rotary_pct", 1.0)),
        qkv_bias=model.get("attn_bias", False),
        # Qwen and Gemma of TensorRT-LLM go by these two, and heed no `qk_layernorm`.
        qk_norm=model.get("qwen_type") in ("qwen3", "qwen3_moe")
        or model.get("architecture") == "Gemma3ForCausalLM",
        fused_gate=model.get("hidden_act") == "swiglu",
        sliding_window=None if local else model.integer("sliding_window", 0) or None,
        local=local,
        experts=_experts(model),
        fp8=model.get("quantization.quant_algo") is not None,
        fp8_kv_cache=model.get("quantization.kv_cache_quant_algo") is not None,
        norms_after=bool(model.get("inter_layernorms", False)),
        gelu=model.get("hidden_act", "gelu") in ("gelu", "gelu_pytorch_tanh"),
        query_scale=model.get("attention_multiplier", 1.0)
        * (head_size / float(model.get("query_pre_attn_scalar", head_size))) ** 0.5,
        embedding_scale=_embedding_scale(model, hidden, dtype),
        residual_scale=model.get("residual_multiplier", 1.0),
        logit_scale=model.get("output_multiplier_scale", 1.0),
        score_cap=model.get("attn_logit_softcapping"),
        logit_cap=model.get("final_logit_softcapping"),
        tp_size=model.integer("mapping.tp_size", 1),
        pp_size=model.integer("mapping.pp_size", 1),
        max_num_tokens=build.integer("max_num_tokens", 8192),
        limits=_limits(model, build),
        draft=model.get("draft"),
    )


def _checked_dtype(path: Path, model: _Section) -> torch.dtype:
    """Returns the dtype of the weights; raises `EngineLoadError` for a model that cannot run here."""
    for key, default, supported in ONLY:
        if (found := model.get(key, default)) not in supported:
            known = ", ".join(map(repr, supported))
            raise EngineLoadError(path, f"{key} is {found!r}; the torch backend runs only {known}")
    dtype = model.get("dtype")
    if dtype not in DTYPES:
        raise EngineLoadError(path, f"dtype is {dtype!r}; the torch backend runs {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _embedding_scale(model: _Section, hidden: int, dtype: torch.dtype) -> float:
    """Returns the factor of the embedding. No key has Gemma's, the root of its size in the model's dtype."""
    if str(model.get("architecture")).startswith("Gemma"):
        return float(torch.tensor(hidden**0.5, dtype=dtype))
    return float(model.get("embedding_multiplier", 1.0))


def _limits(model: _Section, build: _Section) -> Limits:
    """Returns the limits of requests."""
    max_seq_len, external = build.integer("max_seq_len"), build.get("speculative_decoding_mode")
    return Limits(
        max_batch_size=build.integer("max_batch_size"),
        # With packed input and chunked context, TensorRT-LLM's runtime takes any prompt that leaves room
        # for one token, and ignores the build's max_input_len.
        max_input_len=max_seq_len - 1,
        max_seq_len=max_seq_len,
        max_draft_len=build.integer("max_draft_len", 0) if external == DRAFT_TOKENS_EXTERNAL else 0,
        vocab_size=model.integer("vocab_size"),
        tokens_per_block=build.get("plugin_config.tokens_per_block"),
    )


def _scaling(model: _Section) -> dict[str, Any] | None:
    """Returns the scaling of positions with Hugging Face's keys. TensorRT-LLM has others for `longrope`."""
    if model.get("position_embedding_type") != "long_rope":
        return model.get("rotary_scaling")  # type: ignore[no-any-return]
    original = model.integer("original_max_position_embeddings")
    return {
        "rope_type": "longrope",
        "original_max_position_embeddings": original,
        "factor": model.integer("max_position_embeddings") / original,
        "short_factor": model.get("longrope_scaling_short_factors"),
        "long_factor": model.get("longrope_scaling_long_factors"),
    }


def _local(model: _Section) -> Local | None:
    """Returns the layers with a window, by Gemma's keys."""
    if not (pattern := model.integer("_sliding_window_pattern", 0)):
        return None
    base = model.get("rope_local_base_freq")
    return Local(model.integer("sliding_window"), pattern, None if base is None else float(base))


def _experts(model: _Section) -> ExpertConfig | None:
    """Returns the experts. Only TensorRT-LLM's Qwen has a separate key for their width."""
    if not (count := model.integer("moe.num_experts", 0)):
        return None
    return ExpertConfig(
        count,
        chosen=model.integer("moe.top_k"),
        width=model.integer("moe_intermediate_size", 0) or model.integer("intermediate_size"),
        shared_width=model.integer("moe_shared_expert_intermediate_size", 0),
        renormalized=model.get("moe.normalization_mode", 1) == 1,
    )


class _Section:
    """One object of `config.json`. Keys may be dotted paths, and null counts as absent."""

    def __init__(self, path: Path, content: dict[str, Any]) -> None:
        self._path, self._content = path, dict(content)

    def get(self, key: str, default: Any = None) -> Any:
        value: Any = self._content
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        return default if value is None else value

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key, default)
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise EngineLoadError(self._path, f"{key} is {value!r}; it must be a whole number")
        return value
