from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.torch import builder
from trtspec.backends.torch.builder import build, build_config
from trtspec.base.errors import EngineError
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.source import read_source
from trtspec.pipeline.engine.directory import check_engine
from trtspec.pipeline.engine.engine_options import BuildOptions

# The keys that TensorRT-LLM 1.2 writes into an engine's build_config.
# fmt: off
KEYS = [
    "max_input_len", "max_seq_len", "opt_batch_size", "max_batch_size",
    "max_beam_width", "max_num_tokens", "opt_num_tokens", "max_prompt_embedding_table_size",
    "kv_cache_type", "gather_context_logits", "gather_generation_logits", "strongly_typed",
    "force_num_profiles", "profiling_verbosity", "enable_debug_output", "max_draft_len",
    "speculative_decoding_mode", "use_refit", "input_timing_cache", "output_timing_cache",
    "lora_config", "weight_sparsity", "weight_streaming", "plugin_config",
    "use_strip_plan", "max_encoder_input_len", "monitor_memory", "use_mrope",
]
# fmt: on


@pytest.fixture
def checkpoint(llama_folder: Callable[..., Path], tmp_path: Path) -> Path:
    convert(read_source(llama_folder()), ConvertOptions("float32"), tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def test_an_engine_that_verifies_drafts(checkpoint: Path, tmp_path: Path) -> None:
    build(checkpoint, BuildOptions(4, 255, 256, 8192, max_draft_len=8), tmp_path / "engine")
    config = json.loads((tmp_path / "engine/config.json").read_text())
    assert list(config) == ["version", "pretrained_config", "build_config"]
    assert config["version"].startswith("trtspec-torch ")
    assert config["pretrained_config"] == json.loads((checkpoint / "config.json").read_text())
    assert sorted(config["build_config"]) == sorted(KEYS)

    engine = check_engine(tmp_path / "engine", 8)
    assert (engine.backend, engine.dtype, engine.vocab_size, engine.world_size) == (
        "torch",
        "float32",
        264,
        1,
    )
    assert (engine.max_draft_len, engine.speculative_decoding_mode) == (8, 2)
    assert (engine.max_input_len, engine.max_seq_len) == (255, 256 + 8)
    assert engine.use_paged_context_fmha


def test_an_engine_that_proposes(checkpoint: Path, tmp_path: Path) -> None:
    build(checkpoint, BuildOptions(4, 255, 256, 8192), tmp_path / "engine")
    engine = check_engine(tmp_path / "engine", 0)
    assert (engine.max_draft_len, engine.speculative_decoding_mode, engine.max_seq_len) == (0, 1, 256)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (BuildOptions(16, 100, 8192, 8192, 8), 8192),
        (BuildOptions(16, 100, 8192, 100, 8), 16 * 9),  # raised to one verification of every request
        (BuildOptions(2, 100, 128, 8192, 8), 2 * (128 + 8)),  # never more than there can be
        (BuildOptions(16, 100, 8192, 100), 100),
    ],
)
def test_max_num_tokens_as_trtllm_build_counts_them(options: BuildOptions, expected: int) -> None:
    assert build_config(options, "float16")["max_num_tokens"] == expected


def test_options_of_the_recipe_are_written_as_plugin_config_has_them() -> None:
    extra: dict[str, int | float | str] = {
        "gemm_plugin": "auto",
        "nccl_plugin": "disable",
        "multiple_profiles": True,
        "use_fused_mlp": "disable",
    }
    config = build_config(
        BuildOptions(1, 8, 16, 64, extra={**extra, "gather_generation_logits": True}), "float16"
    )
    plugins = config["plugin_config"]
    assert (plugins["dtype"], plugins["gemm_plugin"], plugins["nccl_plugin"]) == ("float16", "auto", None)
    assert (plugins["multiple_profiles"], plugins["use_fused_mlp"]) == (True, False)
    assert config["gather_generation_logits"] is True


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"architecture": "Olmo2ForCausalLM"},
            "architecture is Olmo2ForCausalLM; the torch backend runs",
        ),
        (
            {"architecture": "GraniteForCausalLM", "attention_multiplier": 1.0},
            "has no embedding_multiplier, residual_multiplier, output_multiplier_scale, without which",
        ),
        ({"attn_bias": True}, "attn_bias is True, which for LlamaForCausalLM is False"),
        ({"attn_bias": None}, "attn_bias is None"),
        ({"architecture": "Qwen3ForCausalLM"}, "qwen_type is None, which for Qwen3ForCausalLM is qwen3"),
        ({"architecture": "Phi3ForCausalLM"}, "hidden_act is silu, which for Phi3ForCausalLM is swiglu"),
    ],
)
def test_a_model_that_would_run_as_another_is_refused(
    checkpoint: Path, tmp_path: Path, values: dict[str, Any], said: str
) -> None:
    config = json.loads((checkpoint / "config.json").read_text()) | values
    (checkpoint / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=said):
        build(checkpoint, BuildOptions(1, 8, 16, 64), tmp_path / "engine")
    assert not (tmp_path / "engine").exists()


def test_weights_are_linked_or_else_copied(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = checkpoint / "rank0.safetensors"
    build(checkpoint, BuildOptions(1, 8, 16, 64), tmp_path / "linked")
    assert (tmp_path / "linked/rank0.safetensors").samefile(weights)

    def no_links(*_: object) -> None:
        raise OSError("not on this file system")

    monkeypatch.setattr(os, "link", no_links)
    builder.build(checkpoint, BuildOptions(1, 8, 16, 64), tmp_path / "copied")
    copy = tmp_path / "copied/rank0.safetensors"
    assert not copy.samefile(weights)
    assert copy.read_bytes() == weights.read_bytes()
