"""Every option of `trtllm-build`: what a recipe may set by hand, and why it may not set the others.

Names, values and defaults are those of TensorRT-LLM 1.0 to 1.2 (`commands/build.py`, `plugin/plugin.py`),
whose options are the same but for 1.0's automatic parallelism.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from trtspec.base.findings import Finding

Value = bool | int | float | str


@dataclass(frozen=True, slots=True)
class Words:
    """A value that is one of some words; YAML's false stands for `disable`, and its true for `enable`."""

    words: tuple[str, ...]

    def fits(self, value: Value) -> bool:
        return to_word(value) in self.words

    def __str__(self) -> str:
        return ", ".join(self.words)


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number, up to the largest that a C++ int32 holds."""

    least: int = 1
    """The smallest number."""

    def fits(self, value: Value) -> bool:
        return type(value) is int and self.least <= value <= 2**31 - 1

    def __str__(self) -> str:
        return f"a whole number from {self.least}"


@dataclass(frozen=True, slots=True)
class Flag:
    """An option without a value on the command line: true writes it, false leaves it out."""

    def fits(self, value: Value) -> bool:
        return isinstance(value, bool)

    def __str__(self) -> str:
        return "true or false"


@dataclass(frozen=True, slots=True)
class Phrase:
    """Any text, or one or more words of some that are given."""

    words: tuple[str, ...] = ()
    """If there are any, the text is one or more of these, separated by spaces."""

    def fits(self, value: Value) -> bool:
        return isinstance(value, str) and (not self.words or set(value.split()) <= set(self.words))

    def __str__(self) -> str:
        return f"one or more of {', '.join(self.words)}" if self.words else "text"


Kind = Words | Whole | Flag | Phrase

_SWITCH = Words(("enable", "disable"))
_DTYPES = ("auto", "float16", "float32", "bfloat16", "int32")
_DTYPE = Words((*_DTYPES, "disable"))
_FP8 = Words(("fp8", "disable"))
# The modules of a dense decoder that LoRA can change (TensorRT-LLM's `lora_manager.py`).
_LORA_MODULES = (
    "attn_qkv",
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_dense",
    "mlp_h_to_4h",
    "mlp_4h_to_h",
    "mlp_gate",
    "mlp_gate_up",
)

SIZES = ("max_batch_size", "max_input_len", "max_seq_len", "max_num_tokens")
"""Sizes that a recipe may set for one engine, in place of those of its section `engine`."""

OPTIONS: dict[str, Kind] = {
    **dict.fromkeys(SIZES, Whole()),
    # Not `disable`: without it there is no in-flight batching (`modelConfig.h`, supportsInflightBatching).
    "gpt_attention_plugin": Words(_DTYPES),
    "bert_attention_plugin": _DTYPE,
    "gemm_plugin": Words((*_DTYPES, "fp8", "nvfp4", "disable")),
    "gemm_swiglu_plugin": _FP8,
    "fp8_rowwise_gemm_plugin": _DTYPE,
    "low_latency_gemm_plugin": _FP8,
    "low_latency_gemm_swiglu_plugin": _FP8,
    "gemm_allreduce_plugin": Words(("float16", "bfloat16", "disable")),
    "nccl_plugin": _DTYPE,
    "moe_plugin": _DTYPE,
    "mamba_conv1d_plugin": _DTYPE,
    "lora_plugin": _DTYPE,
    "dora_plugin": _SWITCH,
    "lora_dir": Phrase(),
    "lora_ckpt_source": Words(("hf", "nemo")),
    "lora_target_modules": Phrase(_LORA_MODULES),
    "max_lora_rank": Whole(),
    "use_fp8_context_fmha": _SWITCH,
    "bert_context_fmha_fp32_acc": _SWITCH,
    "multiple_profiles": _SWITCH,
    "reduce_fusion": _SWITCH,
    "user_buffer": _SWITCH,
    "norm_quant_fusion": _SWITCH,
    "fuse_fp4_quant": _SWITCH,
    "use_fused_mlp": _SWITCH,
    "pp_reduce_scatter": _SWITCH,
    "paged_state": _SWITCH,
    "tokens_per_block": Words(("8", "16", "32", "64", "128")),
    "opt_num_tokens": Whole(),
    "max_encoder_input_len": Whole(),
    "max_prompt_embedding_table_size": Whole(least=0),
    "workers": Whole(),
    "profiling_verbosity": Words(("layer_names_only", "detailed", "none")),
    "log_level": Words(("internal_error", "error", "warning", "info", "verbose", "debug", "trace")),
    "visualize_network": Phrase(),
    "gather_generation_logits": Flag(),
    "weight_sparsity": Flag(),
    "weight_streaming": Flag(),
    "fast_build": Flag(),
    "enable_debug_output": Flag(),
    "monitor_memory": Flag(),
}

# Options with the one value that an engine needs here, and the reason. trtllm-build takes other values, with
# which the engines fail when they are loaded.
FIXED: dict[str, tuple[int | str, str]] = {
    "max_beam_width": (1, "speculation has no beams"),
    "kv_cache_type": ("paged", "KV blocks are reused from round to round"),
    "remove_input_padding": ("enable", "in-flight batching needs it"),
    "context_fmha": ("enable", "paged context FMHA needs it"),
    "use_paged_context_fmha": ("enable", "verifying drafts reads KV blocks of the rounds before"),
    "logits_dtype": ("float32", "what is sampled from; the serving side is told the same"),
}

# Options with one value too. It is trtllm-build's default, so that the command line need not have it.
_NEVER: dict[str, tuple[int | str, str]] = {
    "paged_kv_cache": ("enable", "KV blocks are reused from round to round"),
    "streamingllm": ("disable", "TensorRT-LLM no longer builds it"),
    "gather_context_logits": ("disable", "trtllm-build refuses it together with drafts"),
    "gather_all_token_logits": ("disable", "trtllm-build refuses it together with drafts"),
    "strip_plan": ("disable", "an engine without its weights does not load"),
}

# Options that the recipe has another key for, or that trtspec decides, with what to write instead.
_ELSEWHERE = {
    "max_decoder_seq_len": "set engine.max_seq_len",
    "max_draft_len": "set speculation.max_draft_len",
    "max_multimodal_len": "set max_prompt_embedding_table_size",
    "speculative_decoding_mode": "set speculation.mode",
    "auto_parallel": "set parallel: {tensor: …, pipeline: …}",
    "gpus_per_node": "set hardware.count",
    "cluster_key": "set hardware.gpu",
    "checkpoint_dir": "trtspec sets it",
    "output_dir": "trtspec sets it",
    "input_timing_cache": "trtspec sets it",
    "output_timing_cache": "trtspec sets it",
    "model_config": "it would build without weights",
    "build_config": "trtllm-build would ignore every other option",
    "model_cls_file": "trtspec runs no code that comes with a model",
    "model_cls_name": "trtspec runs no code that comes with a model",
    "dry_run": "use trtspec build --dry-run",
}


def option_problem(option: str, value: Value) -> Finding | None:
    """Returns why a recipe may not have this option with this value; None if it may."""
    name = option.lstrip("-").replace("-", "_").lower()
    fixed = FIXED | _NEVER
    known = (*OPTIONS, *fixed, *_ELSEWHERE)
    if name in _ELSEWHERE:
        return Finding(option, "this option of trtllm-build is not for the recipe", _ELSEWHERE[name])
    if name != option or name not in known:
        near = get_close_matches(name, known, n=1)
        repair = f"did you mean {near[0]}?" if near else None
        return Finding(option, "unknown option of trtllm-build", repair)
    if name in fixed:
        wanted, reason = fixed[name]
        if to_word(value) == str(wanted):
            return None
        return Finding(option, f"cannot be {_shown(value)}: {reason}", _REMOVE)
    if not OPTIONS[name].fits(value):
        return Finding(option, f"cannot be {_shown(value)}", f"write {OPTIONS[name]}")
    return None


_REMOVE = "remove this line"


def to_word(value: Value) -> str:
    """A value as `trtllm-build` takes it: YAML's true and false are its enable and disable."""
    return {True: "enable", False: "disable"}[value] if isinstance(value, bool) else str(value)


def to_argv(name: str, value: Value) -> list[str]:
    """The words of an option on the command line; empty for a flag that is off or a default never written."""
    kind = OPTIONS.get(name)
    if name in _NEVER:
        return []
    if isinstance(kind, Flag):
        return [f"--{name}"] if value else []
    words = str(value).split() if isinstance(kind, Phrase) and kind.words else [to_word(value)]
    return [f"--{name}", *words]


def is_on(value: Value | None) -> bool:
    """Returns True if a value switches its option on: any but None, false and `disable`."""
    return value is not None and to_word(value) != "disable"


def _shown(value: Value) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value!r:.80}"
