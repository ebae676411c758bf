"""FP8 models as llm-compressor and AutoFP8 publish them, made from an unquantized folder.

The configs are those of RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8 (`compressed-tensors`) and
neuralmagic/Meta-Llama-3-8B-Instruct-FP8-KV (`fp8`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from trtspec.checkpoint.blueprint import Prequantized, read_prequantized
from trtspec.models.families import family_of
from trtspec.models.source import Source

ARGUMENTS: dict[str, Any] = {
    "actorder": None,
    "block_structure": None,
    "dynamic": False,
    "group_size": None,
    "num_bits": 8,
    "observer": "minmax",
    "observer_kwargs": {},
    "strategy": "tensor",
    "symmetric": True,
    "type": "float",
}
COMPRESSED_TENSORS: dict[str, Any] = {
    "config_groups": {
        "group_0": {
            "input_activations": {**ARGUMENTS, "observer": "memoryless"},
            "output_activations": None,
            "targets": ["Linear"],
            "weights": ARGUMENTS,
        }
    },
    "format": "float-quantized",
    "global_compression_ratio": 1.4,
    "ignore": ["lm_head"],
    "kv_cache_scheme": ARGUMENTS,
    "quant_method": "compressed-tensors",
    "quantization_status": "compressed",
}
AUTO_FP8: dict[str, Any] = {
    "activation_scheme": "static",
    "ignored_layers": ["lm_head"],
    "kv_cache_scheme": "static",
    "quant_method": "fp8",
}
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantize(folder: Path, config: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Turns the folder's weights into FP8; returns its tensors. Inputs and caches get scales of their own."""
    tensors = load_file(folder / "model.safetensors")
    scale_dtype = torch.bfloat16 if config["quant_method"] == "compressed-tensors" else torch.float32
    shape = (1,) if config["quant_method"] == "compressed-tensors" else ()
    for number, name in enumerate([name for name in tensors if name.split(".")[-2] in PROJECTIONS]):
        weight = tensors[name].float()
        scale = (weight.abs().max() / 448).to(scale_dtype)
        tensors[name] = (weight / scale.float()).clamp(-448, 448).to(torch.float8_e4m3fn)
        tensors[f"{name}_scale"] = scale.reshape(shape)
        module = name.removesuffix(".weight")
        tensors[f"{module}.input_scale"] = torch.tensor(0.01 + number / 1024).to(scale_dtype).reshape(shape)
        if config.get("kv_cache_scheme") and name.split(".")[-2] in ("k_proj", "v_proj"):
            letter = name.split(".")[-2][0]
            attention = module.rpartition(".")[0]
            cache = torch.tensor(0.5 + number / 16).to(scale_dtype).reshape(shape)
            tensors[f"{attention}.{letter}_scale"] = cache
    save(folder, tensors, config)
    return tensors


def save(folder: Path, tensors: dict[str, torch.Tensor], config: dict[str, Any]) -> None:
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    content = json.loads((folder / "config.json").read_text()) | {"quantization_config": config}
    (folder / "config.json").write_text(json.dumps(content))


def prequantized_of(source: Source) -> Prequantized | None:
    return read_prequantized(source, family_of(source).weights(source))
