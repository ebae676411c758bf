"""Folders of Hugging Face, whole and broken."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, Llama4Config, Llama4ForConditionalGeneration

from tests.unit.checkpoint.fp8_folders import AUTO_FP8, quantize
from tests.unit.pipeline.inspection.reports import Save, edit, only, said
from trtspec.base.errors import ModelError
from trtspec.base.findings import note
from trtspec.models.families import family_of
from trtspec.models.sizes import ExpertSizes
from trtspec.models.source import read_source
from trtspec.pipeline.inspection.folder import inspect
from trtspec.pipeline.inspection.report import StoredTensors


def test_the_facts_of_a_model_are_those_of_transformers(llama_folder: Save) -> None:
    folder = llama_folder(shard="20KB", tie_word_embeddings=True)
    model = AutoModelForCausalLM.from_pretrained(folder)
    report = inspect(str(folder))
    assert report.kind == "hugging_face"
    assert not report.findings
    for key in ("vocab_size", "hidden_size", "num_key_value_heads", "rope_theta", "tie_word_embeddings"):
        assert report.facts[key] == getattr(model.config, key)
    assert report.facts["parameters"] == sum(parameter.numel() for parameter in model.parameters())
    assert report.facts["architecture"] == "LlamaForCausalLM"
    assert report.facts["convertible"]
    assert report.stored == {
        "BF16": StoredTensors(len(list(model.parameters())), 2 * report.facts["parameters"])
    }
    assert len(report.files) == 1 + len(list(folder.glob("*.safetensors"))) > 3


def test_an_fp8_model(llama_folder: Save) -> None:
    folder = llama_folder()
    parameters = inspect(str(folder)).facts["parameters"]
    quantize(folder, {**AUTO_FP8, "kv_cache_scheme": None})
    report = inspect(str(folder))
    assert report.facts["quant_algo"] == "FP8"
    assert report.facts["parameters"] == parameters
    assert report.facts["convertible"]
    assert only(report) == note("KV cache", only(report).problem)
    assert report.stored["F8_E4M3"].tensors == 14


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "architecture GPT2LMHeadModel is not supported"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "quant_method is awq"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope type 'longrope'"),
        ({"vocab_size": None}, "has no vocab_size"),
    ],
)
def test_a_model_that_trtspec_does_not_convert_is_shown(
    llama_folder: Save, values: dict[str, Any], problem: str
) -> None:
    folder = llama_folder()
    edit(folder, **values)
    report = inspect(str(folder))
    assert not report.facts["convertible"]
    assert problem in said(report, wrong=False)[0]
    assert not said(report, wrong=True)
    assert report.facts["num_hidden_layers"] == 2


def test_a_llama_4_is_shown_and_compared_and_no_engine_is_built_of_it(tmp_path: Path) -> None:
    """As transformers writes one, whose config has that of its text within."""
    text = {
        "vocab_size": 264, "hidden_size": 32, "intermediate_size": 48, "intermediate_size_mlp": 64,
        "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "num_local_experts": 4, "num_experts_per_tok": 1, "pad_token_id": 0,
    }  # fmt: skip
    vision = {
        "hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2,
        "image_size": 28, "patch_size": 14, "vision_output_dim": 16, "projector_input_dim": 16,
        "projector_output_dim": 16,
    }  # fmt: skip
    model = Llama4ForConditionalGeneration(Llama4Config(text_config=text, vision_config=vision))
    model.save_pretrained(tmp_path)
    source = read_source(tmp_path)
    assert source.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (source.model_type, source.num_hidden_layers, source.vocab_size) == ("llama4", 4, 264)
    assert source.experts == ExpertSizes(4, 1, 48)
    with pytest.raises(
        ModelError,
        match=r"Llama4ForConditionalGeneration is multimodal, with llama4_text for text; trtspec builds",
    ) as caught:
        family_of(source)
    assert "engine.backend: vllm or sglang" in str(caught.value.repair)
    report = inspect(str(tmp_path))
    assert not report.facts["convertible"]
    assert (report.facts["num_hidden_layers"], report.facts["hidden_size"]) == (4, 32)
    assert (
        "Llama4ForConditionalGeneration is multimodal, with llama4_text for text"
        in said(report, wrong=False)[0]
    )


def test_inspect_warns_of_everything_odd_in_a_model_folder(llama_folder: Save) -> None:
    folder = llama_folder(dtype=torch.float32, vocab_size=301, tie_word_embeddings=True)
    tensors = load_file(folder / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    tensors["model.norm.weight"] = tensors["model.norm.weight"].half()
    frequencies = torch.ones(4, dtype=torch.bfloat16)
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = frequencies
    save_file(tensors, folder / "model.safetensors")
    (folder / "consolidated.safetensors").write_bytes(b"")
    (folder / "pytorch_model.bin").write_bytes(b"")
    (folder / "tokenizer.json").unlink()
    edit(folder, auto_map={"AutoModel": "modeling.Model"})
    (folder / "modeling.py").write_text("raise SystemExit")
    report = inspect(str(folder))
    assert not said(report, wrong=True)
    assert said(report, wrong=False) == [
        ": has no tokenizer.json",
        "vocab_size: 301 is not a multiple of 8; tensor parallel ranks pad their share with zero rows",
        "lm_head.weight: is stored although it is tied to the embedding; trtspec refuses one that differs",
        "model.layers.0.self_attn.rotary_emb.inv_freq: rotary frequencies are stored as BF16, rounded; "
        "trtspec computes them again",
        "auto_map: the model brings Python code, which trtspec never runs",
        "dtype: the weights are stored in F16 and F32",
        "consolidated.safetensors: is not in the index, so it is not read",
        "pytorch_model.bin: is pickle, which can run code when read; trtspec never opens it",
    ]


def test_each_size_that_no_model_has_is_odd(llama_folder: Save) -> None:
    folder = llama_folder()
    edit(folder, num_hidden_layers=-5, hidden_size=math.inf, vocab_size=0)
    assert set(said(inspect(str(folder)), wrong=False)[:3]) == {
        "config.json: num_hidden_layers must be at least 1, not -5",
        "config.json: hidden_size must be int, not inf",
        "config.json: vocab_size must be at least 1, not 0",
    }


def test_a_dtype_that_the_config_does_not_name(llama_folder: Save) -> None:
    folder = llama_folder(dtype=torch.float32)
    edit(folder, dtype="bfloat16")
    assert said(inspect(str(folder)), wrong=False) == [
        "dtype: config.json has bfloat16, but the weights are float32"
    ]


def test_models_that_are_broken(llama_folder: Save) -> None:
    cut = llama_folder("cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-1])
    report = inspect(str(cut))
    assert "is cut off" in said(report, wrong=True)[0]
    assert only(report).subject == "model.safetensors"
    assert not report.facts["convertible"]

    few = llama_folder("few")
    tensors = load_file(few / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, few / "model.safetensors")
    assert said(inspect(str(few)), wrong=True) == [
        ": model.layers.1.mlp.up_proj.weight: this tensor is missing"
    ]

    small = llama_folder("small", vocab_size=200)
    assert said(inspect(str(small)), wrong=True) == [
        "vocabulary: the model's tokenizer has ids up to 257, but its embedding has 200 rows"
    ]

    config = json.loads((small / "config.json").read_text()) | {"architectures": {"0": "LlamaForCausalLM"}}
    (small / "config.json").write_text(json.dumps(config))
    assert inspect(str(small)).facts["architecture"] is None
