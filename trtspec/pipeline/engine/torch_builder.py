"""The `torch` backend's engine: TensorRT-LLM's `config.json` keys beside the checkpoint's weights.

`config.json` is `{version, pretrained_config, build_config}`. `version` is `trtspec-torch <version of
trtspec>`. `pretrained_config` is the checkpoint's `config.json`. `build_config` has the keys of
TensorRT-LLM 1.2's `BuildConfig`, counted as `trtllm-build` counts them: `max_seq_len` of an engine that
verifies drafts includes `max_draft_len`, and its `max_num_tokens` covers a verification of every request at
once. `rank<N>.safetensors` are the checkpoint's own files, hard links of them where the file system has
those; the executor puts the shares of several ranks together again.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from trtspec.base.errors import EngineError
from trtspec.models.families import FAMILIES
from trtspec.pipeline.engine.directory import NO_DRAFTS, check_engine, write_config
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.recipe.build_options import is_on
from trtspec.serving.executors.limits import DRAFT_TOKENS_EXTERNAL, TORCH_VERSION

FORMAT = 1  # version of what is written: raised when the same checkpoint and options give other bytes
PLUGINS: dict[str, Any] = {
    "dtype": None,
    "bert_attention_plugin": None,
    "gpt_attention_plugin": None,
    "gemm_plugin": None,
    "gemm_swiglu_plugin": None,
    "fp8_rowwise_gemm_plugin": None,
    "low_latency_gemm_plugin": None,
    "low_latency_gemm_swiglu_plugin": None,
    "gemm_allreduce_plugin": None,
    "nccl_plugin": None,
    "lora_plugin": None,
    "context_fmha": True,
    "paged_kv_cache": True,
    "remove_input_padding": True,
    "norm_quant_fusion": False,
    "reduce_fusion": False,
    "user_buffer": False,
    "tokens_per_block": 32,
    "use_paged_context_fmha": True,
    "use_fp8_context_fmha": False,
    "multiple_profiles": False,
    "paged_state": True,
    "streamingllm": False,
    "use_fused_mlp": True,
    "pp_reduce_scatter": False,
}


def build(checkpoint: Path, options: BuildOptions, output: Path) -> None:
    """Makes the engine directory `output`, which must not exist, from a checkpoint of any number of ranks.

    Raises EngineError for a model that the executor would compute wrongly.
    """
    pretrained = json.loads((checkpoint / "config.json").read_text(encoding="utf-8"))
    _check_family(checkpoint / "config.json", pretrained)
    output.mkdir(parents=True)
    for rank in range(pretrained["mapping"]["world_size"]):
        link_or_copy(checkpoint / f"rank{rank}.safetensors", output / f"rank{rank}.safetensors")
    write_config(
        output,
        f"{TORCH_VERSION} {version('trtspec')}",
        pretrained,
        build_config(options, pretrained["dtype"]),
    )
    check_engine(output, options.max_draft_len)


def _check_family(file: Path, pretrained: Mapping[str, Any]) -> None:
    architecture = pretrained.get("architecture")
    family = FAMILIES.get(str(architecture))
    if family is None:
        problem = f"architecture is {architecture}; the torch backend runs only {', '.join(FAMILIES)}"
        raise EngineError(file, problem, "build it with backend: tensorrt_llm")
    for key in family.keys:
        if pretrained.get(key.name) != key.value:
            problem = f"{key.name} is {pretrained.get(key.name)}, which for {architecture} is {key.value}"
            raise EngineError(file, problem, "convert the model again")
    if missing := [name for name in family.needs if pretrained.get(name) is None]:
        problem = f"has no {', '.join(missing)}, without which it is not a model of {architecture}"
        raise EngineError(file, problem, "convert the model again")


def build_config(options: BuildOptions, dtype: str) -> dict[str, Any]:
    """Returns `BuildConfig.to_dict()` as `trtllm-build` would leave it with these options (builder.py,
    `_common.py`).
    """
    drafts, batch = options.max_draft_len, options.max_batch_size
    max_seq_len = options.max_seq_len + drafts
    max_num_tokens = max(options.max_num_tokens, options.num_verified_tokens if drafts else 0)
    max_num_tokens = min(max_num_tokens, max_seq_len * batch)
    return {
        "max_input_len": min(options.max_input_len, max_seq_len),
        "max_seq_len": max_seq_len,
        "opt_batch_size": 8,
        "max_batch_size": batch,
        "max_beam_width": 1,
        "max_num_tokens": max_num_tokens,
        "opt_num_tokens": min(int(options.extra.get("opt_num_tokens", batch)), max_num_tokens),
        "max_prompt_embedding_table_size": 0,
        "kv_cache_type": "PAGED",
        "gather_context_logits": False,
        "gather_generation_logits": is_on(options.extra.get("gather_generation_logits")),
        "strongly_typed": True,
        "force_num_profiles": None,
        "profiling_verbosity": options.extra.get("profiling_verbosity", "layer_names_only"),
        "enable_debug_output": False,
        "max_draft_len": drafts,
        "speculative_decoding_mode": DRAFT_TOKENS_EXTERNAL if drafts else NO_DRAFTS,
        "use_refit": False,
        "input_timing_cache": None,
        "output_timing_cache": None,
        "lora_config": {
            "lora_dir": [],
            "lora_ckpt_source": "hf",
            "max_lora_rank": 64,
            "lora_target_modules": [],
            "trtllm_modules_to_hf_modules": {},
        },
        "weight_sparsity": False,
        "weight_streaming": False,
        "plugin_config": _plugin_config(options, dtype),
        "use_strip_plan": False,
        "max_encoder_input_len": 1024,
        "monitor_memory": False,
        "use_mrope": False,
    }


def _plugin_config(options: BuildOptions, dtype: str) -> dict[str, Any]:
    """The plugin options as `PluginConfig` writes them: switches are booleans, a disabled plugin null."""
    chosen = {name: value for name, value in options.extra.items() if name in PLUGINS}
    for name, value in chosen.items():
        if type(PLUGINS[name]) is bool:
            chosen[name] = is_on(value)
    return (
        PLUGINS
        | {"dtype": dtype}
        | {name: None if value == "disable" else value for name, value in chosen.items()}
    )


def link_or_copy(source: Path, target: Path) -> None:
    """Makes `target` a hard link of `source`, or a copy if the file system has no hard links between them."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
