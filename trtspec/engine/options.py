"""What an engine is built for, and every further option of `trtllm-build` that a recipe may set.

The names, values and defaults are those of TensorRT-LLM 1.0 to 1.2 (`commands/build.py`, `plugin/plugin.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """All in tokens, except `max_batch_size` in requests.

    `max_seq_len` is a longest prompt and answer; the builders add `max_draft_len` to it. `max_draft_len` is
    0 for an engine that verifies no drafts. `extra` holds options of `OPTIONS`, each with its command-line
    value, or True for a flag.
    """

    max_batch_size: int
    max_input_len: int
    max_seq_len: int
    max_num_tokens: int
    max_draft_len: int = 0
    extra: Mapping[str, int | str] = field(default_factory=dict)


_SWITCH = ("enable", "disable")
_FP8 = ("fp8", "disable")
_DTYPE = ("auto", "float16", "bfloat16", "float32", "disable")

# An option's value is one of these words, a number ("int"), or nothing at all ("flag").
OPTIONS: dict[str, tuple[str, ...] | str] = {
    "gpt_attention_plugin": _DTYPE,
    "gemm_plugin": ("auto", "float16", "bfloat16", "float32", "fp8", "disable"),
    "gemm_swiglu_plugin": _FP8,
    "fp8_rowwise_gemm_plugin": _FP8,
    "low_latency_gemm_plugin": _FP8,
    "low_latency_gemm_swiglu_plugin": _FP8,
    "gemm_allreduce_plugin": ("float16", "bfloat16", "disable"),
    "nccl_plugin": _DTYPE,
    "context_fmha": _SWITCH,
    "remove_input_padding": _SWITCH,
    "use_paged_context_fmha": _SWITCH,
    "use_fp8_context_fmha": _SWITCH,
    "multiple_profiles": _SWITCH,
    "paged_state": _SWITCH,
    "reduce_fusion": _SWITCH,
    "user_buffer": _SWITCH,
    "norm_quant_fusion": _SWITCH,
    "use_fused_mlp": _SWITCH,
    "pp_reduce_scatter": _SWITCH,
    "streamingllm": _SWITCH,
    "tokens_per_block": "int",
    "opt_num_tokens": "int",
    "max_beam_width": "int",
    "workers": "int",
    "kv_cache_type": ("paged", "continuous", "disabled"),
    "logits_dtype": ("float32", "float16"),
    "profiling_verbosity": ("layer_names_only", "detailed", "none"),
    "log_level": ("error", "warning", "info", "verbose", "debug"),
    "gather_context_logits": "flag",
    "gather_generation_logits": "flag",
    "gather_all_token_logits": "flag",
    "weight_sparsity": "flag",
    "weight_streaming": "flag",
    "strip_plan": "flag",
    "fast_build": "flag",
    "enable_debug_output": "flag",
    "monitor_memory": "flag",
}

# What a pair cannot do without: trtllm-build accepts other values, and the engines then fail when they are
# loaded.
REQUIRED: dict[str, tuple[int | str | None, str]] = {
    "use_paged_context_fmha": ("enable", "verifying drafts reuses KV blocks, which needs it"),
    "context_fmha": ("enable", "paged context FMHA needs it"),
    "remove_input_padding": ("enable", "in-flight batching needs it"),
    "kv_cache_type": ("paged", "KV block reuse needs it"),
    "max_beam_width": (1, "speculation has no beams"),
    "streamingllm": ("disable", "TensorRT-LLM no longer builds it"),
    "logits_dtype": ("float32", "the served logits are float32"),
    "gather_context_logits": (None, "trtllm-build refuses it together with drafts"),
    "gather_all_token_logits": (
        None,
        "trtllm-build refuses it together with drafts; gather_generation_logits works",
    ),
}

# What the recipe has a key for, or trtspec decides alone.
ELSEWHERE = {
    **{
        name: f"engine.{name}"
        for name in ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
    },
    "max_draft_len": "speculation.max_draft_len",
    "speculative_decoding_mode": "speculation.mode",
    **dict.fromkeys(
        ("checkpoint_dir", "output_dir", "model_config", "build_config", "output_timing_cache"), ""
    ),
    **dict.fromkeys(("input_timing_cache", "dry_run", "paged_kv_cache", "visualize_network"), ""),
}


def check_option(name: str, value: Value) -> Iterator[tuple[str, str | None]]:
    """What is wrong with an option of a recipe's `build` section, and the repair."""
    if name in ELSEWHERE:
        key = ELSEWHERE[name]
        yield ("is set elsewhere", f"use {key}") if key else ("is set by trtspec itself", "leave it out")
    elif name not in OPTIONS:
        near = get_close_matches(name, OPTIONS, 1)
        yield (
            "is not an option of trtllm-build that trtspec knows",
            f"did you mean {near[0]}?" if near else None,
        )
    elif option_value(name, value) is None and not (OPTIONS[name] == "flag" and value is False):
        yield f"cannot be {value!r}", f"use {_allowed(name)}"
    elif name in REQUIRED and option_value(name, value) != REQUIRED[name][0]:
        needed, reason = REQUIRED[name]
        yield f"cannot be {value!r}: {reason}", f"use {needed}" if needed else "leave it out"


def option_value(name: str, value: Value) -> int | str | None:
    """The value for the command line, where true is enable or the flag itself; None for no such value."""
    allowed = OPTIONS[name]
    if allowed == "flag":
        return True if value is True else None
    if allowed == "int":
        return value if type(value) is int and value >= 1 else None
    if type(value) is bool:
        value = "enable" if value else "disable"
    return value if isinstance(value, str) and value in allowed else None


def _allowed(name: str) -> str:
    allowed = OPTIONS[name]
    if isinstance(allowed, str):
        return {"flag": "true or false", "int": "a number from 1"}[allowed]
    return ", ".join(allowed)
