"""Every option of `trtllm-build` that a recipe may set by hand, and why it may not set the others.

Names, values and defaults are those of TensorRT-LLM 1.0 to 1.2 (`commands/build.py`, `plugin/plugin.py`).
"""

from __future__ import annotations

from difflib import get_close_matches

Value = bool | int | float | str

_SWITCH = ("enable", "disable")
_FP8 = ("fp8", "disable")
_DTYPE = ("auto", "float16", "bfloat16", "float32", "disable")
_INT, _FLAG, _TEXT = "a whole number from 1", "true or false", "text"

# An option's value is one of these words, or what the text says.
OPTIONS: dict[str, tuple[str, ...] | str] = {
    "gpt_attention_plugin": _DTYPE,
    "gemm_plugin": (*_DTYPE, "int32", "fp8", "nvfp4"),
    "gemm_swiglu_plugin": _FP8,
    "fp8_rowwise_gemm_plugin": (*_DTYPE, "fp8"),
    "low_latency_gemm_plugin": _FP8,
    "low_latency_gemm_swiglu_plugin": _FP8,
    "gemm_allreduce_plugin": ("float16", "bfloat16", "disable"),
    "nccl_plugin": _DTYPE,
    "lora_plugin": _DTYPE,
    "lora_dir": _TEXT,
    "lora_ckpt_source": ("hf", "nemo"),
    "lora_target_modules": _TEXT,
    "max_lora_rank": _INT,
    "use_fp8_context_fmha": _SWITCH,
    "multiple_profiles": _SWITCH,
    "reduce_fusion": _SWITCH,
    "user_buffer": _SWITCH,
    "norm_quant_fusion": _SWITCH,
    "use_fused_mlp": _SWITCH,
    "pp_reduce_scatter": _SWITCH,
    "tokens_per_block": _INT,
    "opt_num_tokens": _INT,
    "workers": _INT,
    "profiling_verbosity": ("layer_names_only", "detailed", "none"),
    "log_level": ("internal_error", "error", "warning", "info", "verbose", "debug", "trace"),
    "gather_generation_logits": _FLAG,
    "weight_sparsity": _FLAG,
    "weight_streaming": _FLAG,
    "strip_plan": _FLAG,
    "fast_build": _FLAG,
    "enable_debug_output": _FLAG,
    "monitor_memory": _FLAG,
}

# What a pair stands on. trtllm-build takes other values, and the engines then fail when they are loaded.
_FIXED: dict[str, tuple[int | str, str]] = {
    "use_paged_context_fmha": ("enable", "verifying drafts reuses KV blocks, which needs it"),
    "context_fmha": ("enable", "paged context FMHA needs it"),
    "remove_input_padding": ("enable", "in-flight batching needs it"),
    "kv_cache_type": ("paged", "KV block reuse needs it"),
    "paged_kv_cache": ("enable", "KV block reuse needs it"),
    "max_beam_width": (1, "speculation has no beams"),
    "streamingllm": ("disable", "TensorRT-LLM no longer builds it"),
    "logits_dtype": ("float32", "the checkpoint says so"),
    "gather_context_logits": ("disable", "trtllm-build refuses it together with drafts"),
    "gather_all_token_logits": ("disable", "trtllm-build refuses it together with drafts"),
}

# What the recipe has a key of its own for, or what trtspec decides alone.
_ELSEWHERE = {
    "max_batch_size": "set engine.max_batch_size",
    "max_input_len": "set engine.max_input_len",
    "max_seq_len": "set engine.max_seq_len",
    "max_decoder_seq_len": "set engine.max_seq_len",
    "max_num_tokens": "set engine.max_num_tokens",
    "max_draft_len": "set speculation.max_draft_len",
    "speculative_decoding_mode": "set speculation.mode",
    "checkpoint_dir": "trtspec sets it",
    "output_dir": "trtspec sets it",
    "input_timing_cache": "trtspec sets it",
    "output_timing_cache": "trtspec sets it",
    "model_config": "it would build without weights",
    "build_config": "trtllm-build would ignore every other option",
    "model_cls_file": "trtspec runs no code that comes with a model",
    "model_cls_name": "trtspec runs no code that comes with a model",
    "visualize_network": "call trtllm-build yourself for this",
    "dry_run": "use trtspec build --dry-run",
}


def option_problem(option: str, value: Value) -> tuple[str, str | None] | None:
    """Problem and repair; None for an option that may stand in a recipe."""
    name = option.lstrip("-").replace("-", "_").lower()
    known = (*OPTIONS, *_FIXED, *_ELSEWHERE)
    if name in _ELSEWHERE:
        return "this option of trtllm-build is not for the recipe", _ELSEWHERE[name]
    if name != option or name not in known:
        near = get_close_matches(name, known, n=1)
        return "unknown option of trtllm-build", f"did you mean {near[0]}?" if near else None
    word = {True: "enable", False: "disable"}[value] if isinstance(value, bool) else value
    if name in _FIXED:
        wanted, reason = _FIXED[name]
        return None if word == wanted else (f"cannot be {_shown(value)}: {reason}", "remove this line")
    if not _fits(name, value):
        allowed = OPTIONS[name]
        return (
            f"cannot be {_shown(value)}",
            f"write {allowed if isinstance(allowed, str) else ', '.join(allowed)}",
        )
    return None


def _fits(name: str, value: Value) -> bool:
    allowed = OPTIONS[name]
    if allowed == _INT:
        return type(value) is int and value >= 1
    if allowed == _FLAG:
        return isinstance(value, bool)
    if isinstance(value, bool):
        return "disable" in allowed and (value is False or "enable" in allowed)
    return isinstance(value, str) and (allowed == _TEXT or value in allowed)


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"
