"""`trtllm-build` options that a recipe may set by hand, and those that it may not.

Names as of TensorRT-LLM 1.0 to 1.2 (`commands/build.py`, `plugin/plugin.py`).
"""

from __future__ import annotations

from difflib import get_close_matches

# Where the recipe has a key of its own, or where trtspec must decide.
_SET_ELSEWHERE = {
    "checkpoint_dir": "trtspec sets it",
    "output_dir": "trtspec sets it",
    "max_batch_size": "set engine.max_batch_size",
    "max_input_len": "set engine.max_input_len",
    "max_seq_len": "set engine.max_seq_len",
    "max_decoder_seq_len": "set engine.max_seq_len",
    "max_num_tokens": "set engine.max_num_tokens",
    "speculative_decoding_mode": "set speculation.mode",
    "max_draft_len": "set speculation.max_draft_len",
    "logits_dtype": "it stands in the checkpoint, as float32",
    "model_config": "it would build without weights",
    "build_config": "it would make trtllm-build ignore every other option",
    "model_cls_file": "trtspec runs no code that comes with a model",
    "model_cls_name": "trtspec runs no code that comes with a model",
    "dry_run": "use trtspec build --dry-run",
}

# What speculation with in-flight batching stands on; other values build engines that fail to load.
_FIXED = {
    "max_beam_width": 1,
    "kv_cache_type": "paged",
    "paged_kv_cache": "enable",
    "remove_input_padding": "enable",
    "context_fmha": "enable",
    "use_paged_context_fmha": "enable",
    "streamingllm": "disable",
    "gather_context_logits": False,
    "gather_all_token_logits": False,
}

# fmt: off
_FREE = (
    "bert_attention_plugin", "bert_context_fmha_fp32_acc", "dora_plugin", "enable_debug_output",
    "fast_build", "fp8_rowwise_gemm_plugin", "fuse_fp4_quant", "gather_generation_logits",
    "gemm_allreduce_plugin", "gemm_plugin", "gemm_swiglu_plugin", "gpt_attention_plugin",
    "input_timing_cache", "log_level", "lora_ckpt_source", "lora_dir", "lora_plugin",
    "lora_target_modules", "low_latency_gemm_plugin", "low_latency_gemm_swiglu_plugin",
    "mamba_conv1d_plugin", "max_encoder_input_len", "max_lora_rank", "max_prompt_embedding_table_size",
    "moe_plugin", "monitor_memory", "multiple_profiles", "nccl_plugin", "norm_quant_fusion",
    "opt_num_tokens", "output_timing_cache", "paged_state", "pp_reduce_scatter", "profiling_verbosity",
    "reduce_fusion", "strip_plan", "tokens_per_block", "use_fp8_context_fmha", "use_fused_mlp",
    "user_buffer", "visualize_network", "weight_sparsity", "weight_streaming", "workers",
)
# fmt: on

_KNOWN = (*_SET_ELSEWHERE, *_FIXED, *_FREE)
_WORDS = {True: "enable", False: "disable"}


def option_problem(option: str, value: bool | int | float | str) -> tuple[str, str | None] | None:
    """Problem and repair; None for an option that may stand in a recipe.

    An option that is not known here passes unless it looks like a slip: a release may have it.
    """
    name = option.lstrip("-").replace("-", "_").lower()
    if name in _SET_ELSEWHERE:
        return "this option is not for the recipe", _SET_ELSEWHERE[name]
    if name != option and name in _KNOWN:
        return "unknown trtllm-build option", f"write {name}"
    if name in _FIXED and value != _FIXED[name] and _WORDS.get(value is True, value) != _FIXED[name]:
        wanted = str(_FIXED[name]).lower()
        return f"found {str(value).lower()}, but speculative decoding needs {wanted}", "remove this line"
    near = get_close_matches(name, _KNOWN, n=1, cutoff=0.8)
    if name not in _KNOWN and near:
        return "unknown trtllm-build option", f"did you mean {near[0]}?"
    return None
