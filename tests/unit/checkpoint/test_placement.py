"""Ranks as torch cuts them, whole checkpoints: tensor and pipeline parallelism, FP8."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor
from torch.nn.functional import pad
from transformers import AutoModelForCausalLM

from tests.unit.checkpoint.fp8_folders import AUTO_FP8, COMPRESSED_TENSORS, quantize
from trtspec.base.errors import ModelError
from trtspec.base.findings import Finding
from trtspec.checkpoint import convert as module
from trtspec.checkpoint.calibration import Amax, CalibratedRanges
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions, Mapping, misfit
from trtspec.checkpoint.verify import verify
from trtspec.models.source import read_source


@pytest.mark.parametrize("layers", [1, 2, 5, 80, 126])
@pytest.mark.parametrize("stages", [1, 2, 3, 8])
def test_layers_of_a_pipeline_as_torch_splits_them(layers: int, stages: int) -> None:
    expected = [part.tolist() for part in torch.arange(layers).tensor_split(stages)]
    assert [list(Mapping(1, stages).layers(rank, layers)) for rank in range(stages)] == expected


@pytest.mark.parametrize(
    ("mapping", "fp8", "config", "key", "problem", "repair"),
    [
        (
            Mapping(3),
            False,
            {},
            "parallel.tensor",
            "4 attention heads cannot be divided among 3",
            "use 1, 2 or 4",
        ),
        (
            Mapping(8),
            False,
            {},
            "parallel.tensor",
            "4 attention heads cannot be divided among 8",
            "use 1, 2 or 4",
        ),
        (
            *(Mapping(4), False, {"num_attention_heads": 12, "num_key_value_heads": 6}),
            *("parallel.tensor", "6 key-value heads do not divide among 4", "use 1 or 2"),
        ),
        (
            *(Mapping(2), False, {"intermediate_size": 81}),
            *("parallel.tensor", "intermediate_size 81 cannot be divided among 2", "use 1"),
        ),
        (Mapping(1, 3), False, {}, "parallel.pipeline", "exceed the model's 2 layers", "at most 2"),
        (
            *(Mapping(1, 2), False, {"num_hidden_layers": 1}),
            *("parallel.pipeline", "exceed the model's 1 layers", "at most 1"),
        ),
        (
            *(Mapping(2), True, {}),
            *("parallel.tensor", "intermediate_size of a rank: 40 is not a multiple of 16", "use 1"),
        ),
        (
            *(Mapping(1), True, {"intermediate_size": 88}),
            *("quantization.weights", "88 is not a multiple of 16", "leave quantization out"),
        ),
        (
            *(Mapping(3), True, {"intermediate_size": 88}),
            *("parallel.tensor", "4 attention heads cannot be divided among 3"),
            "use 1, 2 or 4, and leave quantization out",
        ),
    ],
)
def test_sizes_that_do_not_divide(
    llama_folder: Callable[..., Path],
    tmp_path: Path,
    mapping: Mapping,
    fp8: bool,
    config: dict[str, int],
    key: str,
    problem: str,
    repair: str,
) -> None:
    folder = llama_folder(**config)
    source = read_source(folder)
    (folder / "model.safetensors").unlink()  # it is not looked at again
    found = misfit(source, mapping, fp8=fp8)
    assert found is not None
    assert (found.subject, found.repair) == (key, repair)
    assert problem in found.problem
    with pytest.raises(ModelError, match=re.escape(problem)):
        convert(source, ConvertOptions("bfloat16", mapping, fp8), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_absurdly_many_heads_take_no_time(llama_folder: Callable[..., Path]) -> None:
    source = read_source(llama_folder())
    found = misfit(replace(source, num_attention_heads=10**9, num_key_value_heads=8), Mapping(3), fp8=False)
    assert found
    assert found.repair == "use 1, 2, 4, 8, 16, 40 or 80"


QWEN3 = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "intermediate_size": 512}


@pytest.mark.parametrize(
    ("tp_size", "kv_heads", "refused"),
    [(1, 2, False), (2, 2, False), (4, 2, False), (8, 2, True), (1, 8, True), (2, 8, True)],
)
def test_a_qwen3_needs_more_query_heads_than_key_value_heads_on_each_rank(
    llama_folder: Callable[..., Path], tp_size: int, kv_heads: int, refused: bool
) -> None:
    source = read_source(llama_folder(**(QWEN3 | {"num_key_value_heads": kv_heads})))
    assert misfit(source, Mapping(tp_size), fp8=True) is None
    found = misfit(replace(source, architecture="Qwen3ForCausalLM"), Mapping(tp_size), fp8=True)
    assert (found is not None) is refused
    if found:
        own = 8 // tp_size
        assert (
            f"a rank has as many query heads as key-value heads, {own}, which TensorRT-LLM" in found.problem
        )
        expected = ("model", "use another model") if kv_heads == 8 else ("parallel.tensor", "use 1, 2 or 4")
        assert (found.subject, found.repair) == expected


def test_phi3_has_no_pipeline(llama_folder: Callable[..., Path]) -> None:
    source = replace(read_source(llama_folder()), architecture="Phi3ForCausalLM")
    assert misfit(source, Mapping(2), fp8=False) is None
    found = misfit(source, Mapping(2, 2), fp8=False)
    problem = "TensorRT-LLM's Phi3ForCausalLM has no pipeline ranks"
    assert found == Finding("parallel.pipeline", problem, "at most 1")


def test_sizes_that_divide(llama_folder: Callable[..., Path]) -> None:
    sizes = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128, "intermediate_size": 512}
    source = read_source(llama_folder(**sizes))
    for tp_size in (1, 2, 4, 8):
        assert misfit(source, Mapping(tp_size, 2), fp8=True) is None


def ranks_of(tensors: dict[str, Tensor], config: dict[str, Any], tp: int, pp: int) -> list[dict[str, Tensor]]:
    """The tensors of each rank, from a Llama's `state_dict` and `config.json`."""
    vocabulary = {
        name: cut(pad(tensors[theirs], (0, 0, 0, -len(tensors[theirs]) % tp)), tp, 0)
        for name, theirs in (
            ("transformer.vocab_embedding.weight", "model.embed_tokens.weight"),
            (
                "lm_head.weight",
                "lm_head.weight" if "lm_head.weight" in tensors else "model.embed_tokens.weight",
            ),
        )
    }
    ranks = []
    stages = torch.arange(config["num_hidden_layers"]).tensor_split(pp)
    for stage, layers in enumerate(stages):
        for rank in range(tp):
            found = {}
            if stage == 0:
                name = "transformer.vocab_embedding.weight"
                found[name] = vocabulary[name][rank]
            for local, layer in enumerate(layers.tolist()):
                cuts = layer_of(tensors, config, layer, tp)
                found |= {f"transformer.layers.{local}.{name}": cuts[name][rank] for name in cuts}
            if stage == pp - 1:
                found["transformer.ln_f.weight"] = tensors["model.norm.weight"]
                found["lm_head.weight"] = vocabulary["lm_head.weight"][rank]
            ranks.append(found)
    return ranks


def layer_of(
    tensors: dict[str, Tensor], config: dict[str, Any], layer: int, tp: int
) -> dict[str, list[Tensor]]:
    """A layer's tensors, of all tensor-parallel ranks each."""
    prefix = f"model.layers.{layer}."
    own = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    size = config["head_dim"]
    query = own["self_attn.q_proj.weight"].unflatten(0, (-1, size))
    key, value = (own[f"self_attn.{name}_proj.weight"].unflatten(0, (-1, size)) for name in "kv")
    copies = max(tp // config["num_key_value_heads"], 1)
    key, value = key.repeat_interleave(copies, 0), value.repeat_interleave(copies, 0)
    fused = zip(query.chunk(tp), key.chunk(tp), value.chunk(tp), strict=True)
    return {
        "input_layernorm.weight": [own["input_layernorm.weight"]] * tp,
        "attention.qkv.weight": [torch.cat(parts).flatten(0, 1) for parts in fused],
        "attention.dense.weight": cut(own["self_attn.o_proj.weight"], tp, 1),
        "post_layernorm.weight": [own["post_attention_layernorm.weight"]] * tp,
        "mlp.fc.weight": cut(own["mlp.gate_proj.weight"], tp, 0),
        "mlp.gate.weight": cut(own["mlp.up_proj.weight"], tp, 0),
        "mlp.proj.weight": cut(own["mlp.down_proj.weight"], tp, 1),
    }


def cut(tensor: Tensor, parts: int, dimension: int) -> list[Tensor]:
    return list(tensor.chunk(parts, dimension))


def quantized(tensor: Tensor, scale: Tensor) -> Tensor:
    return (tensor.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn)


GRID = {"num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 96}
LINEAR = {
    "attention.qkv.": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense.": ("self_attn.o_proj",),
    "mlp.fc.": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.gate.": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.proj.": ("mlp.down_proj",),
}


def converted(folder: Path, options: ConvertOptions, output: Path) -> list[dict[str, torch.Tensor]]:
    convert(read_source(folder), options, output)
    return [load_file(output / f"rank{rank}.safetensors") for rank in range(options.mapping.world_size)]


def original(folder: Path) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    return model.state_dict(), model.config.to_dict()


@pytest.mark.parametrize(
    ("tp", "pp", "config"),
    [
        (2, 1, {}),
        (4, 1, {}),  # each key-value head on two ranks
        (8, 1, {"vocab_size": 261}),
        (1, 2, {"num_hidden_layers": 3}),
        (2, 3, {"num_hidden_layers": 7, "vocab_size": 265, "tie_word_embeddings": True}),
        (4, 2, {"head_dim": 16, "num_key_value_heads": 4}),
    ],
)
def test_every_rank_is_what_torch_cuts(
    llama_folder: Callable[..., Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tp: int,
    pp: int,
    config: dict[str, Any],
) -> None:
    monkeypatch.setattr(module, "CHUNK", 1000)  # so that pieces begin and end anywhere
    folder = llama_folder(**(GRID | config), shard="30KB")
    expected = ranks_of(*original(folder), tp, pp)
    found = converted(folder, ConvertOptions("bfloat16", Mapping(tp, pp)), tmp_path / "out")
    for rank, tensors in zip(found, expected, strict=True):
        assert rank.keys() == tensors.keys()
        for name, tensor in tensors.items():
            assert torch.equal(rank[name], tensor), name
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert written["mapping"] == {"world_size": tp * pp, "tp_size": tp, "pp_size": pp}
    assert written["vocab_size"] == config.get("vocab_size", 264)
    assert (written["use_parallel_embedding"], written["embedding_sharding_dim"]) == (tp > 1, 0)


def calibration_of(tensors: dict[str, torch.Tensor], kv: float | None) -> CalibratedRanges:
    names = [name.removesuffix(".weight") for name in tensors if name.endswith("_proj.weight")]
    linears = {
        name: Amax(float(tensors[f"{name}.weight"].float().abs().max()), 3.0 + number)
        for number, name in enumerate(names)
    }
    caches = [name for name in names if name.endswith(("k_proj", "v_proj"))] if kv else []
    return CalibratedRanges(linears, {name: kv * (2 if "v_" in name else 1) for name in caches if kv}, {})


@pytest.mark.parametrize(("tp", "pp"), [(1, 1), (2, 2), (4, 1)])
@pytest.mark.parametrize("kv", [None, 7.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_fp8(
    llama_folder: Callable[..., Path], tmp_path: Path, tp: int, pp: int, kv: float | None, dtype: torch.dtype
) -> None:
    config = {**GRID, "intermediate_size": 128, "head_dim": 16}
    folder = llama_folder(**config, dtype=dtype)
    tensors, settings = original(folder)
    calibration = calibration_of(tensors, kv)
    options = ConvertOptions("float16", Mapping(tp, pp), True, kv is not None, calibration)
    found = converted(folder, options, tmp_path / "out")

    for rank, expected in zip(found, ranks_of(tensors, settings, tp, pp), strict=True):
        first = 0 if "transformer.vocab_embedding.weight" in rank else 2 // pp
        scales = {}
        for name in expected:
            linear = next((linear for linear in LINEAR if linear in name), None)
            if linear is None:
                assert torch.equal(rank[name], expected[name].half())
                continue
            layer = int(name.split(".")[2]) + first
            amaxes = [calibration.linears[f"model.layers.{layer}.{module}"] for module in LINEAR[linear]]
            weight = torch.tensor([max(amax.weight for amax in amaxes)]) / 448
            scales[name.replace("weight", "weights_scaling_factor")] = weight
            inputs = torch.tensor([max(amax.input for amax in amaxes)]) / 448
            scales[name.replace("weight", "activation_scaling_factor")] = inputs
            bits = quantized(expected[name], weight).view(torch.uint8)
            assert torch.equal(rank[name].view(torch.uint8), bits), name
            if kv and linear == "attention.qkv.":
                k, v = (torch.tensor([factor * kv / 448]).clamp(min=1) for factor in (1, 2))
                for letters, scale in (("k", k), ("v", v), ("kv", torch.maximum(k, v))):
                    scales[name.replace("qkv.weight", f"{letters}_cache_scaling_factor")] = scale
        assert rank.keys() == expected.keys() | scales.keys()
        for name, scale in scales.items():
            assert rank[name].dtype == torch.float32
            assert torch.equal(rank[name], scale), name
    written = json.loads((tmp_path / "out/config.json").read_text())["quantization"]
    cache = "FP8" if kv else None
    assert written == {"quant_algo": "FP8", "kv_cache_quant_algo": cache, "exclude_modules": ["lm_head"]}


def test_scales_stand_behind_their_weight(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = llama_folder(**GRID)
    calibration = calibration_of(original(folder)[0], 1.0)
    convert(
        read_source(folder), ConvertOptions("bfloat16", Mapping(), True, True, calibration), tmp_path / "out"
    )
    with safe_open(tmp_path / "out/rank0.safetensors", "pt") as file:
        names = file.offset_keys()
    at = names.index("transformer.layers.0.attention.qkv.weight")
    assert {name.rpartition(".")[2] for name in names[at + 1 : at + 6]} == {
        *("weights_scaling_factor", "activation_scaling_factor"),
        *("kv_cache_scaling_factor", "k_cache_scaling_factor", "v_cache_scaling_factor"),
    }


@pytest.mark.parametrize("settings", [AUTO_FP8, COMPRESSED_TENSORS])
def test_stored_fp8_at_the_scales_that_products_share(
    llama_folder: Callable[..., Path], tmp_path: Path, settings: dict[str, Any]
) -> None:
    folder = llama_folder(**GRID, head_dim=8)
    stored = quantize(folder, settings)
    source, options = read_source(folder), ConvertOptions("bfloat16", Mapping(2, 2), True, True)
    convert(source, options, tmp_path / "out")
    verify(source, options, tmp_path / "out")

    def scale(name: str) -> torch.Tensor:
        return stored[f"{name}_scale"].float().reshape(1)

    fp8 = [name for name in stored if name.endswith("_proj.weight")]
    wide = {name: stored[name].float() * scale(name) for name in fp8}
    tensors = {name: wide.get(name, tensor) for name, tensor in stored.items() if name.endswith(".weight")}
    config = json.loads((folder / "config.json").read_text())
    for rank, expected in enumerate(ranks_of(tensors, config, 2, 2)):
        found = load_file(tmp_path / f"out/rank{rank}.safetensors")
        for name, tensor in expected.items():
            linear = next((linear for linear in LINEAR if linear in name), None)
            if linear is None:
                assert torch.equal(found[name], tensor)
                continue
            modules = [f"model.layers.{rank // 2}.{module}.weight" for module in LINEAR[linear]]
            shared = torch.stack([scale(module) for module in modules]).amax(0)
            assert torch.equal(found[name.replace("weight", "weights_scaling_factor")], shared)
            assert torch.equal(found[name].view(torch.uint8), quantized(tensor, shared).view(torch.uint8))


def test_fp8_without_scales(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no FP8 scales"):
        convert(read_source(llama_folder()), ConvertOptions("bfloat16", fp8=True), tmp_path / "out")
    assert not (tmp_path / "out").exists()
