"""FP8 models as they are published; ModelOpt's own exports are in `test_modelopt_exports.py`."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.unit.checkpoint.fp8_folders import (
    ARGUMENTS,
    AUTO_FP8,
    COMPRESSED_TENSORS,
    prequantized_of,
    quantize,
    save,
)
from trtspec.base.errors import ModelError, TensorError
from trtspec.checkpoint.convert import convert
from trtspec.checkpoint.convert_options import ConvertOptions
from trtspec.models.families import family_of
from trtspec.models.source import Scheme, read_scheme, read_source
from trtspec.pipeline.inspection.folder import inspect

Q_PROJ = "model.layers.1.self_attn.q_proj"
NVIDIA = {  # of nvidia/Llama-3.1-8B-Instruct-FP8
    "producer": {"name": "modelopt", "version": "0.23.0rc1"},
    "quantization": {
        "quant_algo": "FP8",
        "kv_cache_quant_algo": "FP8",
        "exclude_modules": ["lm_head"],
    },
}


@pytest.mark.parametrize("config", [COMPRESSED_TENSORS, AUTO_FP8], ids=lambda config: config["quant_method"])
def test_scales_are_those_of_the_folder(llama_folder: Callable[..., Path], config: dict[str, Any]) -> None:
    folder = llama_folder()
    tensors = quantize(folder, config)
    source = read_source(folder)
    found = prequantized_of(source)

    assert source.dtype == "bfloat16"
    assert source.scheme == Scheme(config["quant_method"], kv_cache=True)
    assert found is not None
    fp8 = {name.removesuffix(".weight") for name in tensors if tensors[name].dtype == torch.float8_e4m3fn}
    assert len(fp8) == 14
    assert found.stored_scales.keys() == found.calibration.linears.keys() == fp8
    assert found.scale_tensors == {name for name in tensors if name.endswith("_scale")}
    for module in fp8:
        assert found.stored_scales[module] == tensors[f"{module}.weight_scale"].item()
        amax = found.calibration.linears[module]
        assert (amax.weight / 448, amax.input / 448) == (
            found.stored_scales[module],
            tensors[f"{module}.input_scale"].item(),
        )
    assert found.has_kv_scales
    assert {module: amax / 448 for module, amax in found.calibration.kv.items()} == {
        f"model.layers.{layer}.self_attn.{letter}_proj": tensors[
            f"model.layers.{layer}.self_attn.{letter}_scale"
        ].item()
        for layer in (0, 1)
        for letter in "kv"
    }


@pytest.mark.parametrize("bits", [0x7F, 0xFF])
def test_an_fp8_weight_that_is_not_finite_is_refused_by_name(
    llama_folder: Callable[..., Path], tmp_path: Path, bits: int
) -> None:
    folder = llama_folder()
    tensors = quantize(folder, COMPRESSED_TENSORS)
    tensors[f"{Q_PROJ}.weight"].view(torch.uint8)[-1, -1] = bits
    save(folder, tensors, COMPRESSED_TENSORS)
    options = ConvertOptions("bfloat16", fp8=True, fp8_kv_cache=True)
    with pytest.raises(TensorError, match=f"{Q_PROJ}.weight: holds NaN or infinity"):
        convert(read_source(folder), options, tmp_path / "checkpoint")


def test_the_checkpoint_has_the_largest_scale_of_each_product(
    llama_folder: Callable[..., Path], tmp_path: Path
) -> None:
    folder = llama_folder()
    theirs = quantize(folder, COMPRESSED_TENSORS)
    options = ConvertOptions("bfloat16", fp8=True, fp8_kv_cache=True)
    convert(read_source(folder), options, tmp_path / "checkpoint")
    ours = load_file(tmp_path / "checkpoint" / "rank0.safetensors")

    def largest(kind: str, *modules: str) -> float:
        return max(theirs[f"model.layers.1.{module}.{kind}"].item() for module in modules)

    products = {
        "attention.qkv": [f"self_attn.{letter}_proj" for letter in "qkv"],
        "attention.dense": ["self_attn.o_proj"],
        "mlp.fc": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.gate": ["mlp.gate_proj", "mlp.up_proj"],
        "mlp.proj": ["mlp.down_proj"],
    }
    for name, modules in products.items():
        stem = f"transformer.layers.1.{name}"
        assert ours[f"{stem}.weights_scaling_factor"].item() == largest("weight_scale", *modules)
        assert ours[f"{stem}.activation_scaling_factor"].item() == largest("input_scale", *modules)
    for layer, is_above_one in ((0, False), (1, True)):
        scales = [theirs[f"model.layers.{layer}.self_attn.{letter}_scale"].item() for letter in "kv"]
        cache = ours[f"transformer.layers.{layer}.attention.kv_cache_scaling_factor"].item()
        assert (cache, cache > 1) == (max(scales), is_above_one)
    attention = "transformer.layers.1.attention"
    dense = theirs["model.layers.1.self_attn.o_proj.weight"].view(torch.uint8)
    assert torch.equal(ours[f"{attention}.dense.weight"].view(torch.uint8), dense)
    parts = [f"model.layers.1.self_attn.{letter}_proj.weight" for letter in "qkv"]
    read = torch.cat([theirs[part].float() * theirs[f"{part}_scale"].float() for part in parts])
    scale = ours[f"{attention}.qkv.weights_scaling_factor"]
    found = ours[f"{attention}.qkv.weight"].float() * scale
    assert ((found - read).abs() <= (read.abs() / 16).clamp(min=scale.item() / 1024)).all()


@pytest.mark.parametrize("name", ["lm_head.weight", "model.embed_tokens.weight", "model.norm.weight"])
def test_fp8_where_tensorrt_llm_has_none(
    llama_folder: Callable[..., Path], tmp_path: Path, name: str
) -> None:
    """Without its scale it would be hundreds of times too large."""
    folder = llama_folder()
    tensors = quantize(folder, AUTO_FP8)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    tensors[f"{name}_scale"] = torch.tensor(0.01)
    tensors[f"{name.removesuffix('.weight')}.input_scale"] = torch.tensor(0.01)
    save(folder, tensors, AUTO_FP8)
    with pytest.raises(TensorError, match=f"{name}: has dtype F8_E4M3, expected one of F32, F16, BF16"):
        convert(read_source(folder), ConvertOptions("bfloat16", fp8=True), tmp_path / "checkpoint")
    assert not (tmp_path / "checkpoint").exists()


def test_an_fp8_model_without_fp8_in_the_recipe(llama_folder: Callable[..., Path], tmp_path: Path) -> None:
    folder = llama_folder()
    quantize(folder, AUTO_FP8)
    with pytest.raises(ModelError, match="is an FP8 model") as caught:
        convert(read_source(folder), ConvertOptions("bfloat16"), tmp_path / "checkpoint")
    assert caught.value.repair == "write quantization: {weights: fp8} in the recipe"
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("self_attn.{}_scale", "self_attn.{}_proj.output_scale"), ("self_attn.{}_scale", "self_attn.kv_scale")],
)
def test_older_names_of_the_scales_of_the_cache(
    llama_folder: Callable[..., Path], ours: str, theirs: str
) -> None:
    folder = llama_folder()
    tensors = quantize(folder, AUTO_FP8)
    before = prequantized_of(read_source(folder))
    for layer in (0, 1):
        for letter in "vk":
            scale = tensors.pop(f"model.layers.{layer}.{ours.format(letter)}")
            tensors[f"model.layers.{layer}.{theirs.format(letter)}"] = scale
    save(folder, tensors, AUTO_FP8)
    after = prequantized_of(read_source(folder))
    assert before is not None
    assert after is not None
    keys = [module for module in before.calibration.kv if "k_proj" in module]
    assert [before.calibration.kv[k] for k in keys] == [after.calibration.kv[k] for k in keys]
    assert after.has_kv_scales


def test_a_cache_without_scales_has_scale_one(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    quantize(folder, {**AUTO_FP8, "kv_cache_scheme": None})
    source = read_source(folder)
    found = prequantized_of(source)
    assert source.scheme == Scheme("fp8", kv_cache=False)
    assert found is not None
    assert not found.has_kv_scales
    assert set(found.calibration.kv.values()) == {448.0}


def test_zero_points_of_zero_are_no_loss(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    tensors = quantize(folder, COMPRESSED_TENSORS)
    tensors[f"{Q_PROJ}.input_zero_point"] = torch.zeros(1, dtype=torch.float8_e4m3fn)
    save(folder, tensors, COMPRESSED_TENSORS)
    found = prequantized_of(read_source(folder))
    assert found is not None
    assert f"{Q_PROJ}.input_zero_point" in found.scale_tensors
    tensors[f"{Q_PROJ}.input_zero_point"] = torch.ones(1).to(torch.float8_e4m3fn)
    save(folder, tensors, COMPRESSED_TENSORS)
    with pytest.raises(TensorError, match=r"input_zero_point: is not zero"):
        prequantized_of(read_source(folder))


def test_a_model_that_is_not_quantized(llama_folder: Callable[..., Path]) -> None:
    assert prequantized_of(read_source(llama_folder())) is None


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("weight_scale", None, "weight_scale: is missing, but .* is FP8"),
        ("input_scale", None, "input_scale: is missing, but .* is FP8"),
        ("weight_scale", torch.ones(32, 1), "has 32 scales; TensorRT-LLM's FP8 has one per tensor"),
        ("weight_scale", torch.tensor(0.0), "is 0.0, which is not a valid scale"),
        ("input_scale", torch.tensor(float("nan")), "is nan, which is not a valid scale"),
        ("input_scale", torch.tensor(-1.0), "is -1.0, which is not a valid scale"),
        ("input_scale", torch.tensor(1), "a scale of dtype I64"),
        ("weight", torch.zeros(32, 32, dtype=torch.bfloat16), "is BF16; the config says FP8"),
    ],
)
def test_tensors_that_are_not_static_fp8(
    llama_folder: Callable[..., Path], name: str, value: torch.Tensor | None, said: str
) -> None:
    folder = llama_folder()
    tensors = quantize(folder, AUTO_FP8)
    del tensors[f"{Q_PROJ}.{name}"]
    save(folder, tensors if value is None else {**tensors, f"{Q_PROJ}.{name}": value}, AUTO_FP8)
    with pytest.raises(TensorError, match=said) as caught:
        prequantized_of(read_source(folder))
    assert caught.value.subject == str(folder / "model.safetensors")
    assert caught.value.repair


def test_fp8_in_the_config_only(llama_folder: Callable[..., Path]) -> None:
    folder = llama_folder()
    config = json.loads((folder / "config.json").read_text()) | {"quantization_config": AUTO_FP8}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(TensorError, match="weight: is BF16; the config says FP8"):
        prequantized_of(read_source(folder))


def test_modelopt_in_both_of_its_forms(tmp_path: Path) -> None:
    groups = {"dynamic": False, "num_bits": 8, "type": "float"}
    translated = {
        "config_groups": {"group_0": {"input_activations": groups, "weights": groups, "targets": ["Linear"]}},
        "ignore": ["lm_head"],
        "quant_algo": "FP8",
        "kv_cache_scheme": groups,
        "producer": NVIDIA["producer"],
        "quant_method": "modelopt",
    }
    for content in (NVIDIA, translated):
        assert read_scheme(tmp_path, content) == Scheme("modelopt", kv_cache=True)
    without = {"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}}
    assert read_scheme(tmp_path, without) == Scheme("modelopt", kv_cache=False)
    del translated["kv_cache_scheme"]
    assert read_scheme(tmp_path, translated) == Scheme("modelopt", kv_cache=False)


def change(config: dict[str, Any], *path: str, value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(config)
    *parents, last = path
    inner = changed
    for key in parents:
        inner = inner[key]
    inner[last] = value
    return changed


WEIGHTS = ("config_groups", "group_0", "weights")
INPUTS = ("config_groups", "group_0", "input_activations")


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"quant_method": "gptq"}, "quant_method is gptq; trtspec converts FP8 of modelopt, compressed-te"),
        ({"quant_method": "fbgemm_fp8"}, "quant_method is fbgemm_fp8"),
        ({"quant_method": "awq"}, "quant_method is awq"),
        ({"bits": 4}, "is quantized to an unknown scheme"),
        (change(NVIDIA, "quantization", "quant_algo", value="NVFP4"), "quant_algo is NVFP4, not FP8"),
        (
            change(NVIDIA, "quantization", "quant_algo", value="FP8_PER_CHANNEL_PER_TOKEN"),
            "quant_algo is FP8_PER_CHANNEL_PER_TOKEN, not FP8",
        ),
        (change(NVIDIA, "quantization", "kv_cache_quant_algo", value="NVFP4"), "KV cache is quantized to NV"),
        ({"quant_method": "modelopt", "quantization": "FP8"}, "cannot be read"),
        ({**AUTO_FP8, "activation_scheme": "dynamic"}, "activation_scheme is dynamic: no input scale is st"),
        (
            {**AUTO_FP8, "weight_block_size": 128},
            "to FP8 in blocks of 128: the weights have a scale for each",
        ),
        ({**AUTO_FP8, "weight_block_size": [128, 128]}, r"a scale for each block of \[128, 128\]"),
        ({**COMPRESSED_TENSORS, "format": "pack-quantized"}, "format is pack-quantized, not one of float-q"),
        ({**COMPRESSED_TENSORS, "sparsity_config": {"format": "sparse-24-bitmask"}}, "stored sparse"),
        ({**COMPRESSED_TENSORS, "transform_config": {"config_groups": {}}}, "transforms at run time"),
        (change(COMPRESSED_TENSORS, *WEIGHTS, "strategy", value="channel"), "weights: a scale for each chan"),
        (change(COMPRESSED_TENSORS, *WEIGHTS, "num_bits", value=4), "weights: 4 bits of float, not FP8"),
        (change(COMPRESSED_TENSORS, *WEIGHTS, "type", value="int"), "weights: 8 bits of int, not FP8"),
        (change(COMPRESSED_TENSORS, *WEIGHTS, "symmetric", value=False), "weights: asymmetric"),
        (change(COMPRESSED_TENSORS, *INPUTS, value=None), "input_activations: not quantized"),
        (
            change(COMPRESSED_TENSORS, *INPUTS, value={**ARGUMENTS, "dynamic": True, "strategy": "token"}),
            "input_activations: dynamic: no scale is stored",
        ),
        (
            {**COMPRESSED_TENSORS, "kv_cache_scheme": {**ARGUMENTS, "num_bits": 4}},
            "kv_cache_scheme: 4 bits of float",
        ),
        ({"quant_method": "compressed-tensors", "format": "float-quantized"}, "cannot be read"),
    ],
)
def test_schemes_that_tensorrt_llm_does_not_have(tmp_path: Path, config: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        read_scheme(tmp_path / "config.json", config)
    assert caught.value.subject == str(tmp_path / "config.json")


INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}


@pytest.mark.parametrize(
    ("config", "name"),
    [
        (change(NVIDIA, "quantization", "quant_algo", value="NVFP4"), "NVFP4"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "NVFP4"),
        ({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}, "NVFP4"),
        (
            {
                "quant_method": "compressed-tensors",
                "format": "pack-quantized",
                "config_groups": {"0": {"weights": INT4}},
            },
            "INT4 by group",
        ),
        (change(COMPRESSED_TENSORS, *WEIGHTS, "strategy", value="channel"), "FP8 by channel"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "FP8 in blocks of 128x128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, "GPTQ, INT4 in groups of 128"),
        ({"quant_method": "awq", "bits": 4, "group_size": -1}, "AWQ, INT4"),
        ({"quant_method": "bitsandbytes"}, "BITSANDBYTES"),
    ],
)
def test_a_quantization_that_cannot_be_converted_is_refused_by_name(
    llama_folder: Callable[..., Path], config: dict[str, Any], name: str
) -> None:
    """As published by ModelOpt, llm-compressor, DeepSeek, AutoGPTQ and AutoAWQ."""
    folder = llama_folder()
    content = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(content | {"quantization_config": config}))
    source = read_source(folder)
    assert source.scheme is None
    with pytest.raises(ModelError, match=f"is quantized to {name}: ") as caught:
        family_of(source)
    assert "engine.backend: vllm" in str(caught.value.repair)
    report = inspect(str(folder))
    assert (report.facts["quant_algo"], report.facts["convertible"]) == (name, False)
