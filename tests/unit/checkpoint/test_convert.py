from __future__ import annotations

import errno
import json
import os
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaForCausalLM

from trtspec.base.errors import TensorError, UnavailableError
from trtspec.checkpoint import convert as module
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.source import read_source


def as_hugging_face(tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The checkpoint mapped back by the rules of TensorRT-LLM's own loader, written a second time."""
    q = config["num_attention_heads"] * config["head_size"]
    kv = config["num_key_value_heads"] * config["head_size"]
    names = {
        "transformer.vocab_embedding": "model.embed_tokens",
        "transformer.ln_f": "model.norm",
        "transformer.layers": "model.layers",
        "attention.dense": "self_attn.o_proj",
        "post_layernorm": "post_attention_layernorm",
        "mlp.fc": "mlp.gate_proj",
        "mlp.gate.": "mlp.up_proj.",
        "mlp.proj": "mlp.down_proj",
    }
    result = {}
    for name, tensor in tensors.items():
        for ours, theirs in names.items():
            name = name.replace(ours, theirs)
        if "qkv" in name:
            for part, rows in zip("qkv", tensor.split([q, kv, kv]), strict=True):
                result[name.replace("attention.qkv", f"self_attn.{part}_proj")] = rows
        else:
            result[name] = tensor
    return result


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(
    "config",
    [{}, {"tie_word_embeddings": True}, {"shard": "20KB"}, {"num_key_value_heads": 4, "head_dim": 16}],
)
def test_mapped_back_it_is_the_model_of_transformers(
    llama_folder: Callable[..., Path], tmp_path: Path, dtype: str, config: dict[str, Any]
) -> None:
    folder = llama_folder(**config)
    convert(read_source(folder), ConvertOptions(dtype), tmp_path / "out")
    written = json.loads((tmp_path / "out/config.json").read_text())
    tensors = load_file(tmp_path / "out/rank0.safetensors")
    model = LlamaForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))

    expected = model.state_dict()
    found = as_hugging_face(tensors, written)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name].dtype == getattr(torch, dtype)
        assert torch.equal(found[name], expected[name]), name


def test_config_of_the_checkpoint(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    scaling = {"rope_type": "linear", "factor": 2.0}
    convert(read_source(llama_folder(rope_scaling=scaling)), ConvertOptions("float16"), tmp_path / "out")
    assert json.loads((tmp_path / "out/config.json").read_text()) == {
        "architecture": "LlamaForCausalLM",
        "dtype": "float16",
        "logits_dtype": "float32",
        "vocab_size": 264,
        "hidden_size": 32,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_size": 8,
        "hidden_act": "silu",
        "norm_epsilon": 1e-06,
        "position_embedding_type": "rope_gpt_neox",
        "max_position_embeddings": 512,
        "rotary_embedding_dim": 8,
        "use_parallel_embedding": False,
        "embedding_sharding_dim": 0,
        "qk_layernorm": False,
        "mlp_bias": False,
        "attn_bias": False,
        "rotary_base": 10000.0,
        "rotary_scaling": scaling,
        "residual_mlp": False,
        "disable_weight_only_quant_plugin": False,
        "remove_duplicated_kv_heads": False,
        "tie_word_embeddings": False,
        "mapping": {"world_size": 1, "tp_size": 1, "pp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }


def test_the_same_source_gives_the_same_bytes(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    one, sharded = llama_folder("ones"), llama_folder("four", shard="20KB")
    for name, folder in (("a", one), ("b", one), ("c", sharded)):
        convert(read_source(folder), ConvertOptions("float32"), tmp_path / name)
    for file in ("config.json", "rank0.safetensors"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "c" / file).read_bytes()


def test_memory_does_not_grow_with_the_model(
    llama_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = llama_folder(vocab_size=60_000, hidden_size=64, num_hidden_layers=1)
    monkeypatch.setattr(module, "CHUNK", 1 << 18)
    source = read_source(folder)
    tracemalloc.start()
    try:
        convert(source, ConvertOptions("float32"), tmp_path / "out")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "out/rank0.safetensors").stat().st_size > 30_000_000
    assert peak < 4_000_000


def edit(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


Q = "model.layers.1.self_attn.q_proj.weight"


def replaced_by(tensor: torch.Tensor) -> Callable[[dict[str, torch.Tensor]], None]:
    return lambda tensors: tensors.update({Q: tensor})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda tensors: tensors.pop(Q), f"{Q}: this tensor is missing"),
        (lambda tensors: tensors.pop("lm_head.weight"), "has no lm_head.weight, although the head is not"),
        (replaced_by(torch.zeros(32, 31)), rf"{Q}: has shape \[32, 31\], but config.json demands \[32, 32\]"),
        (replaced_by(torch.zeros(32, 32).double()), f"{Q}: has dtype F64, expected one of F32, F16, BF16"),
        (replaced_by(torch.zeros(32, 32, dtype=torch.int8)), f"{Q}: has dtype I8"),
        (
            lambda tensors: tensors.update({"model.extra": torch.zeros(1)}),
            "model.extra: LlamaForCausalLM has no such",
        ),
        (
            lambda tensors: tensors.update({"model.layers.2.input_layernorm.weight": torch.zeros(32)}),
            "model.layers.2.input_layernorm.weight: LlamaForCausalLM has no such",
        ),
        (replaced_by(torch.full((32, 32), 1e6)), f"{Q}: holds 1e\\+06, too large for float16"),
    ],
)
def test_tensors_that_do_not_fit(
    llama_folder: Callable[..., Path], tmp_path: Path, change: Callable[..., Any], said: str
) -> None:
    folder = llama_folder()
    edit(folder, change)
    with pytest.raises(TensorError, match=said):
        convert(read_source(folder), ConvertOptions("float16"), tmp_path / "out")


@pytest.mark.parametrize("number", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [Q, "model.norm.weight", "lm_head.weight"])
def test_a_weight_that_is_not_finite_is_refused_by_name(
    llama_folder: Callable[..., Path], tmp_path: Path, number: float, stored: torch.dtype, name: str
) -> None:
    folder = llama_folder(dtype=stored)
    edit(folder, lambda tensors: tensors[name].view(-1)[-1].fill_(number))
    with pytest.raises(TensorError, match=f"{name}: holds NaN or infinity") as caught:
        convert(read_source(folder), ConvertOptions("bfloat16"), tmp_path / "out")
    assert caught.value.repair


def test_a_tied_head_may_be_stored_if_it_is_the_embedding(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = llama_folder(tie_word_embeddings=True)
    edit(folder, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"] * 1}))
    edit(folder, lambda t: t.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(4)}))
    convert(read_source(folder), ConvertOptions("bfloat16"), tmp_path / "out")
    tensors = load_file(tmp_path / "out/rank0.safetensors")
    assert torch.equal(tensors["lm_head.weight"], tensors["transformer.vocab_embedding.weight"])
    assert tensors["lm_head.weight"].any()


@pytest.mark.parametrize(
    "change", [lambda head: head * 2, lambda head: head.float(), lambda head: head[1:] * 1]
)
def test_a_tied_head_with_numbers_of_its_own(
    llama_folder: Callable[..., Path], tmp_path: Path, change: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    """transformers 4 would take the embedding, transformers 5 the head."""
    folder = llama_folder(tie_word_embeddings=True)
    edit(folder, lambda t: t.update({"lm_head.weight": change(t["model.embed_tokens.weight"])}))
    with pytest.raises(TensorError, match="is not the embedding, although tie_word_embeddings is true"):
        convert(read_source(folder), ConvertOptions("bfloat16"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_cut_off_while_it_is_read(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    source = read_source(llama_folder())
    os.truncate(source.folder / "model.safetensors", 5000)
    with pytest.raises(TensorError, match="was cut off while it was read"):
        convert(source, ConvertOptions("float32"), tmp_path / "out")


def test_a_disk_that_fills_while_it_is_written(
    llama_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runner turns this error into one line, and removes the folder."""
    left, write = 20, os.pwrite

    def fill(descriptor: int, data: memoryview, position: int) -> int:
        nonlocal left
        left -= 1
        if left < 0:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(descriptor, data[:100] if left % 2 else data, position)

    monkeypatch.setattr(os, "pwrite", fill)
    with pytest.raises(OSError, match="No space left") as caught:
        convert(read_source(llama_folder()), ConvertOptions("float32"), tmp_path / "out")
    assert caught.value.errno == errno.ENOSPC


def test_a_write_that_takes_a_part_goes_on(
    llama_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, write = read_source(llama_folder()), os.pwrite
    convert(source, ConvertOptions("float32"), tmp_path / "at once")
    monkeypatch.setattr(os, "pwrite", lambda file, data, position: write(file, data[:1000], position))
    convert(source, ConvertOptions("float32"), tmp_path / "in parts")
    once, parts = (tmp_path / name / "rank0.safetensors" for name in ("at once", "in parts"))
    assert once.read_bytes() == parts.read_bytes()


def test_a_disk_without_the_space_is_found_before_writing(
    llama_folder: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = read_source(llama_folder())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000}))
    with pytest.raises(UnavailableError, match="the disk is full"):
        convert(source, ConvertOptions("float32"), tmp_path / "out")
    assert not (tmp_path / "out/rank0.safetensors").exists()
