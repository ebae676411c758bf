"""A stand-in for `trtllm-build`: exactly the options of one release, its checks, its engine directory.

Options, choices, checks and silent changes are those of TensorRT-LLM's `commands/build.py`,
`plugin/plugin.py` and `builder.py`. The "plan" is the rank of the checkpoint, which the stand-in for the
bindings runs, and a few random bytes, for a real one differs between two builds as well. `FAKE_RELEASE` is
the release, `FAKE_FAILURE` a way to fail, `FAKE_CALLS` a file that gets a line at the start and one at the
end of each run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

RELEASE = os.environ.get("FAKE_RELEASE", "1.2.1")
FAILURE = os.environ.get("FAKE_FAILURE", "")
SM = int(os.environ.get("FAKE_SM", "90"))

DTYPES = ["auto", "float16", "float32", "bfloat16", "int32"]
PLUGINS: dict[str, tuple[list[str], str | None]] = {
    "bert_attention_plugin": (DTYPES, "auto"),
    "gpt_attention_plugin": (DTYPES, "auto"),
    "gemm_plugin": ([*DTYPES, "fp8", "nvfp4"], None),
    "gemm_swiglu_plugin": (["fp8"], "disable"),
    "fp8_rowwise_gemm_plugin": (DTYPES, "disable"),
    "nccl_plugin": (DTYPES, "auto"),
    "lora_plugin": (DTYPES, "disable"),
    "moe_plugin": (DTYPES, "auto"),
    "mamba_conv1d_plugin": (DTYPES, "auto"),
    "low_latency_gemm_plugin": (["fp8"], "disable"),
    "low_latency_gemm_swiglu_plugin": (["fp8"], "disable"),
    "gemm_allreduce_plugin": (["float16", "bfloat16"], "disable"),
}
SWITCHES = {
    "dora_plugin": False,
    "context_fmha": True,
    "bert_context_fmha_fp32_acc": False,
    "remove_input_padding": True,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": True,
    "fuse_fp4_quant": False,
    "multiple_profiles": False,
    "paged_state": True,
    "streamingllm": False,
    "norm_quant_fusion": False,
    "reduce_fusion": False,
    "user_buffer": False,
    "use_fused_mlp": True,
    "pp_reduce_scatter": False,
}
NUMBERS = {
    "max_batch_size": 2048,
    "max_input_len": 1024,
    "max_beam_width": 1,
    "max_num_tokens": 8192,
    "opt_num_tokens": None,
    "max_encoder_input_len": 1024,
    "workers": 1,
    "max_lora_rank": 64,
    "max_draft_len": 0,
    "tokens_per_block": 32,
}
FLAGS = ["strip_plan", "weight_sparsity", "weight_streaming", "fast_build", "enable_debug_output", "dry_run"]
FLAGS += ["monitor_memory", "gather_context_logits", "gather_generation_logits", "gather_all_token_logits"]
TEXTS = ["checkpoint_dir", "model_config", "build_config", "model_cls_file", "model_cls_name"]
TEXTS += ["paged_kv_cache", "input_timing_cache", "visualize_network"]
LEVELS = ["internal_error", "error", "warning", "info", "verbose", "debug", "trace"]
MODES = {
    "draft_tokens_external": 2,
    "medusa": 4,
    "lookahead_decoding": 8,
    "explicit_draft_tokens": 16,
    "eagle": 32,
}
FUSING = ("Gemma2ForCausalLM", "LlamaForCausalLM", "MedusaForCausalLM")
VERBOSITY = ["layer_names_only", "detailed", "none"]


def parser(release: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser("trtllm-build", allow_abbrev=False)
    for name in TEXTS:
        options.add_argument(f"--{name}")
    options.add_argument("--output_dir", default="engine_outputs")
    options.add_argument("--output_timing_cache", default="model.cache")
    options.add_argument("--max_seq_len", "--max_decoder_seq_len", dest="max_seq_len", type=int)
    options.add_argument("--max_prompt_embedding_table_size", "--max_multimodal_len", type=int, default=0)
    options.add_argument("--kv_cache_type", choices=("continuous", "paged", "disabled"), default="paged")
    options.add_argument("--profiling_verbosity", choices=VERBOSITY, default=VERBOSITY[0])
    options.add_argument("--log_level", choices=LEVELS, default="info")
    options.add_argument("--logits_dtype", choices=("float16", "float32"))
    options.add_argument("--lora_dir", nargs="+")
    options.add_argument("--lora_ckpt_source", choices=("hf", "nemo"), default="hf")
    options.add_argument("--lora_target_modules", nargs="+", choices=("attn_qkv", "attn_q", "attn_v"))
    options.add_argument("--speculative_decoding_mode", choices=MODES)
    for name, number in NUMBERS.items():
        options.add_argument(f"--{name}", type=int, default=number)
    for name in FLAGS:
        options.add_argument(f"--{name}", action="store_true")
    for name, (words, default) in PLUGINS.items():
        options.add_argument(f"--{name}", choices=(*words, "disable"), default=default)
    for name, on in SWITCHES.items():
        default = "enable" if on else "disable"
        options.add_argument(f"--{name}", choices=("enable", "disable"), default=default)
    if release.startswith("1.0"):
        options.add_argument("--auto_parallel", type=int, default=1)
        options.add_argument("--gpus_per_node", type=int, default=8)
        options.add_argument("--cluster_key")
    return options


def say(text: str, logger: str = "TRT-LLM", level: str = "I") -> None:
    print(f"[11/21/2026-07:30:00] [{logger}] [{level}] {text}", flush=True)


def main() -> None:
    options = parser(RELEASE).parse_args()
    if calls := os.environ.get("FAKE_CALLS"):
        with open(calls, "a") as stream:
            stream.write(f"{time.time()} start {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n")
    if options.gather_context_logits and options.max_draft_len > 0:
        raise RuntimeError("Gather context logits is not support with draft len > 0. ")
    print(f"[TensorRT-LLM] TensorRT-LLM version: {RELEASE}", flush=True)
    output = Path(options.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    plugins = plugin_config(options)
    pretrained = json.loads((Path(options.checkpoint_dir) / "config.json").read_text())
    if options.multiple_profiles == "enable" and options.opt_num_tokens is not None:
        raise RuntimeError("multiple_profiles is enabled, while opt_num_tokens is set. ")
    if options.logits_dtype:
        pretrained["logits_dtype"] = options.logits_dtype
    build = build_config(options, plugins, pretrained)
    world_size = pretrained["mapping"]["world_size"]
    for rank in range(world_size):
        build_rank(options, rank, world_size, output)
        if rank == 0:
            config = {"version": RELEASE, "pretrained_config": pretrained, "build_config": build}
            (output / "config.json").write_text(json.dumps(config, indent=4))
    if calls:
        with open(calls, "a") as stream:
            stream.write(f"{time.time()} end {os.environ.get('CUDA_VISIBLE_DEVICES', '')}\n")
    say("Total time of building all engines: 00:00:00")


def build_rank(options: argparse.Namespace, rank: int, world_size: int, output: Path) -> None:
    assert (Path(options.checkpoint_dir) / f"rank{rank}.safetensors").is_file()
    say("Build TensorRT engine Unnamed Network 0")
    fail(rank, world_size, output)
    known = Path(options.input_timing_cache) if options.input_timing_cache else None
    say(f"Loaded {len(known.read_bytes())} bytes of timing cache", "TRT") if known else None
    if rank == 0:
        Path(options.output_timing_cache).write_bytes((known.read_bytes() if known else b"") + b"timing ")
    say(f"Serializing engine to {output}/rank{rank}.engine...")
    (output / f"rank{rank}.engine").write_bytes(plan(Path(options.checkpoint_dir, f"rank{rank}.safetensors")))
    if options.fast_build:
        (output / f"rank{rank}_managed_weights.safetensors").write_bytes(os.urandom(1000))


def plan(weights: Path) -> bytes:
    """A safetensors file with other metadata."""
    content = weights.read_bytes()
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end]) | {"__metadata__": {"build": os.urandom(8).hex()}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + content[end:]


def fail(rank: int, world_size: int, output: Path) -> None:
    if FAILURE == "middle" and rank == world_size - 1:
        raise RuntimeError("Failed to set weight: transformer.ln_f.weight")
    if FAILURE == "gpu memory":
        say("Requested amount of GPU memory (2147483648 bytes) could not be allocated.", "TRT", "E")
        raise AssertionError("Engine building failed, please check error log.")
    if FAILURE == "host memory":
        os.kill(os.getpid(), 9)
    if FAILURE.startswith("hang"):
        # A worker process that would finish the engine if nobody ended it.
        code = f"import time; time.sleep(3); open({str(output / 'late')!r}, 'w')"
        subprocess.Popen([sys.executable, "-c", code])
        Path(os.environ["FAKE_HANGING"]).touch()
        time.sleep(60)


def plugin_config(options: argparse.Namespace) -> dict[str, Any]:
    chosen = {name: getattr(options, name) for name in (*PLUGINS, *SWITCHES)}
    assert options.streamingllm != "enable", "StreamingLLM is no longer supported"
    if SM == 100:
        for name in ("gemm_swiglu_plugin", "fp8_rowwise_gemm_plugin", "low_latency_gemm_plugin"):
            if chosen[name] != "disable":
                raise NotImplementedError(f"{name}={chosen[name]} is not supported on SM {SM}.")
    plugins = {name: None if chosen[name] == "disable" else chosen[name] for name in PLUGINS}
    plugins |= {name: chosen[name] == "enable" for name in SWITCHES}
    return plugins | {
        "paged_kv_cache": options.kv_cache_type == "paged",
        "manage_weights": options.fast_build,
    }


def build_config(
    options: argparse.Namespace, plugins: dict[str, Any], pretrained: dict[str, Any]
) -> dict[str, Any]:
    mode = MODES.get(options.speculative_decoding_mode, 1)
    if options.max_draft_len == 0:  # A `MedusaConfig` and an `EagleConfig` have it.
        options.max_draft_len = pretrained.get("max_draft_len", 0)
    max_seq_len = options.max_seq_len + (options.max_draft_len if mode > 1 else 0)
    if mode == MODES["eagle"]:
        max_seq_len += pretrained["num_eagle_layers"]
        assert options.max_batch_size <= 512, "Max batch size > 512 is not supported for EAGLE"
        assert options.max_draft_len <= 256, "Max draft len > 256 is not supported for EAGLE"
    max_num_tokens = min(options.max_num_tokens, options.max_seq_len * options.max_batch_size)
    if mode > 1:
        max_num_tokens = max(max_num_tokens, options.max_batch_size * (options.max_draft_len + 1))
    attention(plugins, pretrained)
    world_size = pretrained["mapping"]["world_size"]
    plugins |= {"paged_state": False, "nccl_plugin": pretrained["dtype"] if world_size > 1 else None}
    if plugins["reduce_fusion"] and (
        pretrained["mapping"]["tp_size"] == 1 or pretrained["architecture"] not in FUSING
    ):
        say("Overriding reduce_fusion to False", level="W")
        plugins["reduce_fusion"] = False
    return {
        "max_input_len": min(options.max_input_len, options.max_seq_len),
        "max_seq_len": max_seq_len,
        "opt_batch_size": 8,
        "max_batch_size": options.max_batch_size,
        "max_beam_width": options.max_beam_width,
        "max_num_tokens": max_num_tokens,
        "opt_num_tokens": options.opt_num_tokens or min(options.max_batch_size, max_num_tokens),
        "max_prompt_embedding_table_size": options.max_prompt_embedding_table_size,
        "kv_cache_type": options.kv_cache_type.upper(),
        "gather_context_logits": options.gather_context_logits,
        "gather_generation_logits": options.gather_generation_logits,
        "strongly_typed": True,
        "force_num_profiles": None,
        "profiling_verbosity": options.profiling_verbosity,
        "enable_debug_output": options.enable_debug_output,
        "max_draft_len": options.max_draft_len,
        "speculative_decoding_mode": mode,
        "use_refit": False,
        "input_timing_cache": options.input_timing_cache,
        "output_timing_cache": options.output_timing_cache,
        "weight_sparsity": options.weight_sparsity,
        "weight_streaming": options.weight_streaming,
        "plugin_config": {"dtype": pretrained["dtype"], "tokens_per_block": 32, **plugins},
        "use_strip_plan": options.strip_plan,
        "max_encoder_input_len": options.max_encoder_input_len,
        "monitor_memory": options.monitor_memory,
        "use_mrope": False,
    }


def attention(plugins: dict[str, Any], pretrained: dict[str, Any]) -> None:
    """The silent changes to paged and FP8 context FMHA."""
    quantization = pretrained["quantization"]
    fp8, fp8_cache = quantization["quant_algo"] == "FP8", quantization["kv_cache_quant_algo"] == "FP8"
    if not plugins["context_fmha"]:
        plugins["use_fp8_context_fmha"] = plugins["use_paged_context_fmha"] = False
    elif not fp8 or SM < 89:
        plugins["use_fp8_context_fmha"] = False
        plugins["use_paged_context_fmha"] &= not fp8_cache
    elif plugins["use_paged_context_fmha"]:
        plugins["use_fp8_context_fmha"] = fp8_cache
    if FAILURE == "no paged context":
        plugins["use_paged_context_fmha"] = False


if __name__ == "__main__":
    main()
