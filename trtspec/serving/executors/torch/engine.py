"""The configuration of an engine directory of the torch backend: `config.json` as plain data.

Keys and defaults are those of TensorRT-LLM's engines (`builder.py`) and checkpoints (`models/*/config.py`).
What this backend cannot run is refused here, before anything is loaded. The keys alone decide; the builder
knows which architectures there are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executor import Limits
from trtspec.serving.executors.limits import DRAFT_TOKENS_EXTERNAL

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}

# What the model may say where TensorRT-LLM knows more than one way: the key, its default, the ones that run
# here.
ONLY: tuple[tuple[str, Any, tuple[Any, ...]], ...] = (
    ("qwen_type", "qwen2", ("qwen2", "qwen3")),
    ("attn_bias", False, (False, True)),
    ("hidden_act", "gelu", ("silu", "swiglu")),
    ("position_embedding_type", "learned_absolute", ("rope_gpt_neox",)),
    ("rotary_pct", 1.0, (1.0,)),
    ("mlp_bias", False, (False,)),
    ("qk_layernorm", False, (False,)),
    ("residual_mlp", False, (False,)),
    ("use_logn_attn", False, (False,)),
    ("embedding_multiplier", 1.0, (1.0,)),
    ("attention_multiplier", 1.0, (1.0,)),
    ("residual_multiplier", 1.0, (1.0,)),
    ("output_multiplier_scale", 1.0, (1.0,)),
    ("quantization.quant_algo", None, (None, "FP8")),
    ("quantization.kv_cache_quant_algo", None, (None, "FP8")),
    ("quantization.exclude_modules", ["lm_head"], (["lm_head"],)),
    ("mapping.cp_size", 1, (1,)),
    ("embedding_sharding_dim", 0, (0,)),
    ("moe.num_experts", 0, (0,)),
    ("draft.method", None, (None, "eagle3", "eagle", "medusa", "layers")),
)


@dataclass(frozen=True, slots=True)
class TorchEngineConfig:
    """A decoder and the limits that its engine was built with; sizes are counts of elements or tokens.

    `qkv_bias`: q, k and v have biases. `qk_norm`: q and k are normalized, head by head. `fused_gate`:
    `mlp.fc` is two matrices, of which the second goes through the activation. `sliding_window`: how many
    tokens, itself counted, a token sees; None for all. `fp8`: the products of every layer are W8A8.
    `tp_size` and `pp_size`: how the weights are shared out; they run on one device nevertheless. `draft`: its
    `method` and options, where it is a draft that lives in its target (`dependents`).
    """

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
    qkv_bias: bool
    qk_norm: bool
    fused_gate: bool
    sliding_window: int | None
    fp8: bool
    fp8_kv_cache: bool
    tp_size: int
    pp_size: int
    max_num_tokens: int
    limits: Limits
    draft: Mapping[str, Any] | None = None


def read_config(engine_dir: Path) -> TorchEngineConfig:
    """Returns the configuration; raises `EngineLoadError` if it is missing, broken or cannot run here."""
    path = engine_dir / "config.json"
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        model, build = _Section(path, document["pretrained_config"]), _Section(path, document["build_config"])
    except FileNotFoundError:
        raise EngineLoadError(path, "no such file; is this an engine directory?") from None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EngineLoadError(path, f"not an engine's config.json ({error!r})") from error

    for key, default, supported in ONLY:
        if (found := model.get(key, default)) not in supported:
            known = ", ".join(map(repr, supported))
            raise EngineLoadError(path, f"{key} is {found!r}; the torch backend runs only {known}")
    dtype = model.get("dtype")
    if dtype not in DTYPES:
        raise EngineLoadError(path, f"dtype is {dtype!r}; the torch backend runs {', '.join(DTYPES)}")

    hidden, heads = model.integer("hidden_size"), model.integer("num_attention_heads")
    max_seq_len, external = build.integer("max_seq_len"), build.get("speculative_decoding_mode")
    return TorchEngineConfig(
        dtype=DTYPES[dtype],
        vocab_size=model.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=model.integer("intermediate_size", 4 * hidden),
        num_layers=model.integer("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=model.integer("num_key_value_heads", heads),
        head_size=model.integer("head_size", hidden // heads),
        norm_epsilon=float(model.get("norm_epsilon", 1e-5)),
        rotary_base=float(model.get("rotary_base", 10000.0)),
        rotary_scaling=model.get("rotary_scaling"),
        qkv_bias=model.get("attn_bias", False),
        qk_norm=model.get("qwen_type") == "qwen3",
        fused_gate=model.get("hidden_act") == "swiglu",
        sliding_window=model.integer("sliding_window", 0) or None,
        fp8=model.get("quantization.quant_algo") is not None,
        fp8_kv_cache=model.get("quantization.kv_cache_quant_algo") is not None,
        tp_size=model.integer("mapping.tp_size", 1),
        pp_size=model.integer("mapping.pp_size", 1),
        max_num_tokens=build.integer("max_num_tokens", 8192),
        limits=Limits(
            max_batch_size=build.integer("max_batch_size"),
            # With packed input and chunked context, TensorRT-LLM's runtime takes any prompt that leaves room
            # for one token and does not look at the build's max_input_len.
            max_input_len=max_seq_len - 1,
            max_seq_len=max_seq_len,
            max_draft_len=build.integer("max_draft_len", 0) if external == DRAFT_TOKENS_EXTERNAL else 0,
            vocab_size=model.integer("vocab_size"),
        ),
        draft=model.get("draft"),
    )


class _Section:
    """One object of `config.json`; keys may be dotted paths, and null is the same as absent."""

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
