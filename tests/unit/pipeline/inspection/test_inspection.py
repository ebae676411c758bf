"""Folders of every kind, whole and broken; checkpoints and engines are also those of NVIDIA ModelOpt."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.fakes.engine_dir import tiny_model
from tests.fakes.modelopt import calibrate, export
from tests.unit.checkpoint.fp8_folders import AUTO_FP8, quantize
from tests.unit.pipeline.inspection.reports import Save, edit, only, said
from trtspec.backends.torch.builder import build, build_config
from trtspec.base.errors import ModelError
from trtspec.base.findings import Severity, errors
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping
from trtspec.models.source import read_source
from trtspec.pipeline.engine.directory import write_config
from trtspec.pipeline.engine.engine_options import BuildOptions
from trtspec.pipeline.inspection.folder import inspect

# Checkpoints.


@pytest.fixture
def checkpoint(llama_folder: Save, tmp_path: Path) -> Callable[..., Path]:
    """An FP8 checkpoint of two tensor and two pipeline ranks."""

    def make(**config: Any) -> Path:
        folder = llama_folder(hidden_size=64, intermediate_size=96, head_dim=16, **config)
        quantize(folder, AUTO_FP8)
        options = ConvertOptions("bfloat16", Mapping(2, 2), fp8=True, fp8_kv_cache=True)
        convert(read_source(folder), options, tmp_path / "checkpoint")
        return tmp_path / "checkpoint"

    return make


def test_our_checkpoint_has_nothing_odd(checkpoint: Callable[..., Path], tmp_path: Path) -> None:
    report = inspect(str(checkpoint(num_hidden_layers=3, vocab_size=264)))
    assert (report.kind, report.findings) == ("checkpoint", ())
    facts = report.facts
    assert (facts["tp_size"], facts["pp_size"]) == (2, 2)
    assert (facts["quant_algo"], facts["kv_cache_quant_algo"]) == ("FP8", "FP8")
    assert facts["parameters"] == inspect(str(tmp_path / "model")).facts["parameters"]
    assert len(report.files) == 5
    assert report.bytes == sum(file.stat().st_size for file in report.files)


@pytest.mark.parametrize("family", ["llama", "mistral", "phi3", "qwen2", "qwen3"])
@pytest.mark.parametrize("fp8", [False, True])
def test_modelopts_checkpoints_have_its_known_gaps_and_no_other(
    tmp_path: Path, family: str, fp8: bool
) -> None:
    """Of Phi-3 it counts the rows of both halves of `mlp.fc`."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "head_dim": 16}
    model = tiny_model(family, dtype=torch.bfloat16, **sizes)
    if fp8:
        calibrate(model, lambda model: model(torch.randint(0, 96, (2, 64))))
    export(model, torch.bfloat16, tmp_path, tensor=2, pipeline=1 if family == "phi3" else 2)
    report = inspect(str(tmp_path))
    gaps = {"logits_dtype", *(["KV cache"] if fp8 else [])}
    if "qwen" in family:
        gaps |= {"architecture", "qwen_type"}
    wrong = {"qwen_type"}
    if family == "phi3":
        wrong |= {"rank0.safetensors", "rank1.safetensors"}
        gaps |= wrong - {"qwen_type"}
    assert {found.subject for found in report.findings} == gaps
    assert {found.subject for found in errors(report.findings)} == gaps & wrong


def test_tensors_that_other_converters_add_do_not_fail_the_inspection(
    checkpoint: Callable[..., Path],
) -> None:
    """TensorRT-LLM's own computes it anew from the configuration when it builds the engine."""
    file = checkpoint() / "rank0.safetensors"
    tensors = load_file(file)
    tensors["transformer.layers.0.attention.kv_cache_rcp_scaling_factor"] = torch.ones(1)
    for name in ("rotary_inv_freq", "embed_positions", "embed_positions_for_gpt_attention"):
        tensors[name] = torch.ones(1)
    save_file(tensors, file)
    assert not [line for line in said(inspect(str(file.parent)), wrong=False) if "rank0" in line]


@pytest.mark.parametrize(
    ("family", "ranks", "key"),
    [
        ("phi3", 2, "hidden_act"),
        ("mixtral", 2, "hidden_act"),
        ("qwen2_moe", 2, "qwen_type"),
        ("gemma3_text", 2, "rotary_base"),
        ("granite", 2, "residual_multiplier"),
    ],
)
def test_one_that_is_ours_has_nothing_odd(tmp_path: Path, family: str, ranks: int, key: str) -> None:
    tiny_model(family, dtype=torch.bfloat16).save_pretrained(tmp_path / "model")
    source = read_source(tmp_path / "model")
    convert(source, ConvertOptions("bfloat16", Mapping(ranks)), tmp_path / "checkpoint")
    report = inspect(str(tmp_path / "checkpoint"))
    assert not report.findings
    assert report.facts["parameters"] == source.parameters
    missing: dict[str, Any] = {key: None}
    edit(tmp_path / "checkpoint", **missing)
    found = only(inspect(str(tmp_path / "checkpoint")))
    assert (found.severity, found.subject) == (Severity.ERROR, key)


@pytest.mark.parametrize(
    ("key", "value", "problem"),
    [
        (
            "qwen_type",
            None,
            "is None, not qwen3; TensorRT-LLM would silently leave out the norms of q and k",
        ),
        (
            "qwen_type",
            "qwen2",
            "is qwen2, not qwen3; TensorRT-LLM would silently leave out the norms of q and k",
        ),
        ("attn_bias", None, "is None, not False; TensorRT-LLM would add biases that this family lacks"),
    ],
)
def test_a_qwen3_that_does_not_say_so(tmp_path: Path, key: str, value: str | None, problem: str) -> None:
    model = tiny_model("qwen3", dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "model")
    convert(read_source(tmp_path / "model"), ConvertOptions("bfloat16"), tmp_path / "checkpoint")
    assert not inspect(str(tmp_path / "checkpoint")).findings
    change: dict[str, Any] = {key: value}
    edit(tmp_path / "checkpoint", **change)
    found = only(inspect(str(tmp_path / "checkpoint")))
    assert (found.severity, found.subject) == (Severity.ERROR, key)
    assert found.problem.startswith(problem)


@pytest.mark.parametrize(
    ("path", "values", "problem"),
    [
        ((), {"hidden_act": None}, "hidden_act: is missing; TensorRT-LLM uses gelu"),
        ((), {"rotary_base": None}, "rotary_base: is missing; TensorRT-LLM uses 10000"),
        (("quantization",), {"bits": 8}, "quantization: has bits, which TensorRT-LLM refuses with a TypeErr"),
        (
            ("mapping",),
            {"world_size": 3},
            "mapping: world_size is 3, but the product of tp_size, pp_size and cp_size is 4",
        ),
        (
            ("mapping",),
            {"tp_size": 3, "world_size": 6},
            "mapping: 4 attention heads cannot be divided among 3",
        ),
        ((), {"intermediate_size": 100}, "mapping: intermediate_size of a rank: 50 is not a multiple of 16"),
        (
            (),
            {"intermediate_size": 128},
            "mlp.fc.weight: has shape [48, 64], but its config demands [64, 64]",
        ),
        (
            (),
            {"num_hidden_layers": 4},
            "rank2.safetensors: transformer.layers.1.input_layernorm.weight: is mi",
        ),
        ((), {"dtype": "float16"}, "has dtype BF16, but its config demands F16 (and "),
    ],
)
def test_configs_that_tensorrt_llm_would_take_amiss(
    checkpoint: Callable[..., Path], path: tuple[str, ...], values: dict[str, Any], problem: str
) -> None:
    folder = checkpoint(num_hidden_layers=3)
    edit(folder, *path, **values)
    assert any(problem in line for line in said(inspect(str(folder)), wrong=True))


@pytest.mark.parametrize(
    "values",
    [
        {"num_hidden_layers": 10**9},
        {"hidden_size": 10**30},
        {"num_attention_heads": 10**9},
        {"num_key_value_heads": 2.0},
        {"head_size": "8"},
        {"architecture": ["LlamaForCausalLM"]},
        {"architecture": "MixtralForCausalLM", "moe": None},
        {"architecture": "MixtralForCausalLM", "moe": {"num_experts": 10**9, "top_k": 2}},
        {"architecture": "MixtralForCausalLM", "moe_intermediate_size": "x", "moe": {"num_experts": 2}},
    ],
)
def test_sizes_of_no_model_are_shown(checkpoint: Callable[..., Path], values: dict[str, Any]) -> None:
    """Numbers of billions kept this busy for hours, and others ended it with a trace."""
    folder = checkpoint()
    edit(folder, **values)
    facts = inspect(str(folder)).facts
    assert all(facts[key] == value for key, value in values.items() if key in facts)


@pytest.mark.parametrize(
    ("path", "key", "value", "problem"),
    [
        ((), "num_hidden_layers", -5, "is -5, and must be a whole number from 1 to 2147483647"),
        ((), "num_hidden_layers", 0, "is 0, and must be"),
        ((), "num_hidden_layers", 10**6, "is 1000000, which is more than any model has"),
        ((), "hidden_size", math.inf, "is inf, and must be"),
        ((), "num_key_value_heads", -1, "is -1, and must be"),
        ((), "vocab_size", "many", "is 'many', and must be"),
        (("mapping",), "tp_size", -2, "is -2, and must be"),
    ],
)
def test_sizes_of_no_model_are_wrong(
    engine: Path, path: tuple[str, ...], key: str, value: Any, problem: str
) -> None:
    """Whatever the family, in a checkpoint as in an engine."""
    for folder, place in ((engine.with_name("checkpoint"), ()), (engine, ("pretrained_config",))):
        edit(folder, *place, *path, **{key: value})
        for architecture in ("LlamaForCausalLM", "OtherForCausalLM"):
            edit(folder, *place, architecture=architecture)
            lines = said(inspect(str(folder)), wrong=True)
            assert any(line.startswith(f"{key}: {problem}") for line in lines), lines


def test_an_fp8_cache_needs_fp8_weights(llama_folder: Save, tmp_path: Path) -> None:
    convert(read_source(llama_folder()), ConvertOptions("bfloat16"), tmp_path / "checkpoint")
    edit(tmp_path / "checkpoint", "quantization", kv_cache_quant_algo="FP8")
    (line,) = said(inspect(str(tmp_path / "checkpoint")), wrong=True)
    assert line.startswith("KV cache: is FP8 but the weights are not")


def test_ranks_that_are_not_whole(checkpoint: Callable[..., Path]) -> None:
    folder = checkpoint()
    (folder / "rank1.safetensors").unlink()
    (folder / "rank2.safetensors").write_bytes(b"cut")
    tensors = load_file(folder / "rank0.safetensors")
    name = "transformer.layers.0.attention.qkv.weights_scaling_factor"
    tensors["transformer.layers.0.extra"] = tensors.pop(name)
    save_file(tensors, folder / "rank0.safetensors")
    save_file(tensors, folder / "rank4.safetensors")
    report = inspect(str(folder))
    wrong = said(report, wrong=True)
    assert wrong[0] == "rank1.safetensors: is missing; the checkpoint has 4 ranks"
    assert wrong[1].startswith("rank2.safetensors: is truncated or not safetensors")
    assert wrong[2] == f"rank0.safetensors: {name}: is missing"
    assert said(report, wrong=False) == [
        "rank4.safetensors: is not read; the checkpoint has 4 ranks",
        "rank0.safetensors: transformer.layers.0.extra: does not belong to this model; TensorRT-LLM "
        "ignores it",
    ]


# Engines.


def test_an_engine_of_the_torch_backend(llama_folder: Save, tmp_path: Path) -> None:
    checkpoint = str(tmp_path / "checkpoint")
    convert(read_source(llama_folder()), ConvertOptions("float32"), tmp_path / "checkpoint")
    (odd,) = said(inspect(checkpoint), wrong=False)
    assert odd.endswith("only the torch backend serves it")
    build(tmp_path / "checkpoint", BuildOptions(4, 255, 256, 8192, max_draft_len=8), tmp_path / "engine")
    assert inspect(checkpoint).findings == (), "the build has it for that backend"
    report = inspect(str(tmp_path / "engine"))
    assert (report.kind, report.findings) == ("engine", ())
    assert report.facts["backend"] == "torch"
    assert (report.facts["max_draft_len"], report.facts["max_seq_len"]) == (8, 264)
    assert report.stored["F32"].tensors == inspect(checkpoint).stored["F32"].tensors
    (tmp_path / "engine" / "rank0.safetensors").unlink()
    assert said(inspect(str(tmp_path / "engine")), wrong=True)


@pytest.fixture
def engine(llama_folder: Save, tmp_path: Path) -> Path:
    """A directory as trtllm-build makes it of two ranks."""
    options = ConvertOptions("bfloat16", Mapping(2))
    convert(read_source(llama_folder()), options, tmp_path / "checkpoint")
    folder = tmp_path / "engine"
    folder.mkdir()
    pretrained = json.loads((tmp_path / "checkpoint" / "config.json").read_text())
    limits = build_config(BuildOptions(4, 255, 256, 8192, max_draft_len=8), "bfloat16")
    write_config(folder, "1.2.1", pretrained, limits)
    for rank in range(2):
        (folder / f"rank{rank}.engine").write_bytes(b"plan")
    return folder


def test_an_engine_of_tensorrt_llm(engine: Path) -> None:
    report = inspect(str(engine))
    assert (report.kind, report.findings, report.stored) == ("engine", (), {})
    assert report.facts["version"] == "1.2.1"
    assert report.facts["backend"] == "tensorrt_llm"
    assert [file.name for file in report.files] == ["config.json", "rank0.engine", "rank1.engine"]


@pytest.mark.parametrize(
    ("path", "values", "problem"),
    [
        ((), {"max_draft_len": 0}, "speculative_decoding_mode: is 2, but max_draft_len is 0"),
        ((), {"max_num_tokens": 35}, "max_num_tokens: 35 is too small for 4 verifications of 8 draft tokens"),
        ((), {"gather_context_logits": True}, "gather_context_logits: cannot be combined with drafts"),
        ((), {"max_seq_len": None}, "config.json: has no max_seq_len"),
        (
            (),
            {"max_batch_size": "4"},
            "config.json: is not an engine's config: max_batch_size is '4'",
        ),
        (("plugin_config",), {"use_paged_context_fmha": False}, "use_paged_context_fmha: is off"),
    ],
)
def test_engines_that_would_fail(
    engine: Path, path: tuple[str, ...], values: dict[str, Any], problem: str
) -> None:
    edit(engine, "build_config", *path, **values)
    (line,) = said(inspect(str(engine)), wrong=True)
    assert line.startswith(problem)


def test_engine_files_that_are_missing_or_empty(engine: Path) -> None:
    (engine / "rank0.engine").write_bytes(b"")
    (engine / "rank1.engine").unlink()
    assert said(inspect(str(engine)), wrong=True) == [
        "rank1.engine: is missing; the engine has 2 ranks",
        "rank0.engine: is empty",
    ]


def test_ranks_that_only_a_config_claims(engine: Path, tmp_path: Path) -> None:
    checkpoint, many = tmp_path / "checkpoint", 100_000
    edit(checkpoint, "mapping", tp_size=many, world_size=many)
    edit(engine, "pretrained_config", "mapping", tp_size=many, world_size=many)
    (checkpoint / "rank0.safetensors").unlink()
    lines = said(inspect(str(checkpoint)), wrong=True)
    assert "rank0.safetensors: is missing (and 99998 more); the checkpoint has 100000 ranks" in lines
    assert len([line for line in lines if "is missing" in line]) == 1
    lines = said(inspect(str(engine)), wrong=True)
    assert "rank2.engine: is missing (and 99997 more); the engine has 100000 ranks" in lines
    assert len([line for line in lines if "is missing" in line]) == 1


# What is neither.


def test_folders_that_are_nothing_of_this(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="is neither a folder nor a Hub model in this machine's cache"):
        inspect("owner/model")
    with pytest.raises(ModelError, match=r"has no config\.json"):
        inspect(str(tmp_path))
    engine = tmp_path / "target" / "engine"
    engine.mkdir(parents=True)
    (engine / "config.json").write_text("[]")
    with pytest.raises(ModelError, match=r"has no config\.json") as caught:
        inspect(str(tmp_path))
    assert caught.value.repair == f"name one of {engine}"
    with pytest.raises(ModelError, match="is not a JSON object"):
        inspect(str(engine))
