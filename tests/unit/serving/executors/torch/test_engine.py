from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.errors import EngineLoadError
from trtspec.serving.executors.torch.engine import read_config
from trtspec.serving.executors.torch.torch_executor import TorchExecutor
from trtspec.serving.executors.torch.weights import forms, read_tensors


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama())


def edit(engine: Path, section: str, **changes: Any) -> None:
    document = json.loads((engine / "config.json").read_text())
    document[section] |= changes
    (engine / "config.json").write_text(json.dumps(document))


def edit_tensors(engine: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(engine / "rank0.safetensors")
    change(tensors)
    save_file(tensors, engine / "rank0.safetensors")


def test_reads_the_limits(engine: Path) -> None:
    limits = read_config(engine).limits
    assert (limits.max_batch_size, limits.max_draft_len, limits.max_seq_len) == (4, 6, 128)
    # Not the build's max_input_len, which TensorRT-LLM's runtime does not look at with packed input.
    assert limits.max_input_len == 127


def test_an_engine_without_a_mode_for_external_drafts_has_a_draft_limit_of_zero(engine: Path) -> None:
    edit(engine, "build_config", speculative_decoding_mode=1)
    assert read_config(engine).limits.max_draft_len == 0


def test_defaults_are_those_of_tensorrt_llm(engine: Path) -> None:
    document = json.loads((engine / "config.json").read_text())
    for key in ("num_key_value_heads", "head_size", "rotary_base", "norm_epsilon", "mapping", "quantization"):
        del document["pretrained_config"][key]
    (engine / "config.json").write_text(json.dumps(document))
    config = read_config(engine)
    assert (config.num_kv_heads, config.head_size, config.rotary_base) == (6, 8, 10000.0)


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("quantization", {"quant_algo": "W4A16_AWQ"}, "quantization.quant_algo is 'W4A16_AWQ'"),
        ("quantization", {"kv_cache_quant_algo": "INT8"}, "kv_cache_quant_algo is 'INT8'"),
        ("quantization", {"quant_algo": "FP8", "exclude_modules": ["*proj"]}, "exclude_modules"),
        ("qwen_type", "qwen2_vl", "qwen_type is 'qwen2_vl'"),
        ("sliding_window", "long", "sliding_window is 'long'"),
        ("mapping", {"world_size": 2, "cp_size": 2}, "mapping.cp_size is 2"),
        ("mapping", {"world_size": 2, "tp_size": 2}, r"rank1\.safetensors: no such file"),
        ("dtype", "float8", "dtype is 'float8'"),
        ("hidden_act", "relu", "hidden_act"),
        ("attn_bias", True, r"attention\.qkv\.bias is missing"),
        ("attn_bias", "yes", "attn_bias is 'yes'"),
        ("hidden_act", "swiglu", r"mlp\.fc\.weight is .*\[80, 48\], not .*\[160, 48\]"),
        ("moe", {"num_experts": 8, "top_k": 2, "normalization_mode": 2}, "moe.normalization_mode is 2"),
        ("hidden_size", None, "hidden_size is None"),
        ("vocab_size", "96", "vocab_size is '96'"),
        ("rotary_scaling", {"rope_type": "yarn", "factor": 2.0}, "yarn"),
        ("rotary_scaling", {"rope_type": "llama3", "factor": 2.0}, "low_freq_factor"),
    ],
)
def test_the_torch_engine_refuses_configurations_that_it_cannot_run_by_name(
    engine: Path, key: str, value: Any, text: str
) -> None:
    edit(engine, "pretrained_config", **{key: value})
    with pytest.raises(EngineLoadError, match=text.replace("(", r"\(")):
        TorchExecutor(engine)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": "1.2.1"}', '{"pretrained_config": 3}'])
def test_a_broken_config(engine: Path, content: str) -> None:
    (engine / "config.json").write_text(content)
    with pytest.raises(EngineLoadError, match=r"config\.json"):
        read_config(engine)


def test_missing_files(engine: Path) -> None:
    (engine / "rank0.safetensors").unlink()
    with pytest.raises(EngineLoadError, match=r"rank0\.safetensors: no such file"):
        TorchExecutor(engine)
    with pytest.raises(EngineLoadError, match=r"config\.json: no such file"):
        read_config(engine / "elsewhere")


def test_a_truncated_file(engine: Path) -> None:
    path = engine / "rank0.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(EngineLoadError, match="not a whole safetensors file"):
        TorchExecutor(engine)


def test_a_missing_tensor(engine: Path) -> None:
    edit_tensors(engine, lambda tensors: tensors.pop("transformer.layers.1.mlp.gate.weight"))
    with pytest.raises(EngineLoadError, match=r"transformer\.layers\.1\.mlp\.gate\.weight is missing"):
        TorchExecutor(engine)


@pytest.mark.parametrize(
    "wrong", [torch.zeros(95, 48), torch.zeros(96, 48, dtype=torch.bfloat16)], ids=["shape", "dtype"]
)
def test_a_wrong_tensor(engine: Path, wrong: torch.Tensor) -> None:
    edit_tensors(engine, lambda tensors: tensors.update({"lm_head.weight": wrong}))
    with pytest.raises(EngineLoadError, match=r"lm_head\.weight is .*, not torch.float32 \[96, 48\]"):
        TorchExecutor(engine)


def test_extra_tensors_are_no_matter(engine: Path) -> None:
    edit_tensors(engine, lambda tensors: tensors.update({"more": torch.zeros(3)}))
    config = read_config(engine)
    assert set(read_tensors(engine, config, torch.device("cpu"))) == set(forms(config))
