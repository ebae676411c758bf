"""NVIDIA ModelOpt's calibration and its exporter of TensorRT-LLM checkpoints, for every family.

Its import takes seconds: it is imported where it is used, and `tests.support.workers` has one process for it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from tests.support.families import FAMILIES

AS_IF = {family.decoder: family.as_if for family in FAMILIES.values() if family.as_if}


def calibrate(
    model: PreTrainedModel, run: Callable[[PreTrainedModel], Any], *, kv_cache: bool = False, but: str = ""
) -> None:
    """Makes an FP8 model of it, calibrated by what `run` has it read; quantizers named like `but` are off."""
    import modelopt.torch.quantization as mtq

    recipe = copy.deepcopy(mtq.FP8_DEFAULT_CFG)
    if kv_cache:
        recipe["quant_cfg"] += mtq.FP8_KV_CFG["quant_cfg"]
    if but:
        recipe["quant_cfg"].append({"quantizer_name": but, "enable": False})
    with torch.inference_mode():
        mtq.quantize(model, recipe, run)


def export(
    model: PreTrainedModel, dtype: torch.dtype, folder: Path, tensor: int = 1, pipeline: int = 1
) -> None:
    """Writes the checkpoint; the exporter changes the model that it is given.

    Of Phi-3 and Gemma it makes all tensors, but no `config.json` unless TensorRT-LLM is installed: that is
    made as for `AS_IF`. And it cuts `mlp.fc` across, though each rank needs its share of both halves.
    """
    from modelopt.torch.export import export_tensorrt_llm_checkpoint, model_config_export

    family, name = FAMILIES[model.config.model_type].decoder, "convert_to_tensorrt_llm_config"
    config = partial(_config, getattr(model_config_export, name))
    with torch.inference_mode(), patch.object(model_config_export, name, config):
        export_tensorrt_llm_checkpoint(
            model,
            family,
            dtype,
            export_dir=folder,
            inference_tensor_parallel=tensor,
            inference_pipeline_parallel=pipeline,
        )
    if family == "phi3" and tensor > 1:
        for stage in range(pipeline):
            _cut_again([folder / f"rank{stage * tensor + rank}.safetensors" for rank in range(tensor)])


def export_hugging_face(model: PreTrainedModel, folder: Path) -> None:
    from modelopt.torch.export import export_hf_checkpoint

    with torch.inference_mode():
        export_hf_checkpoint(model, export_dir=folder)


def _config(original: Callable[..., Any], model_config: Any, *others: Any, **more: Any) -> Any:
    layers, decoder = model_config.layers, model_config.layers[0].decoder_type
    for layer in layers:
        layer.decoder_type = AS_IF.get(decoder, decoder)
    config: dict[str, Any] = original(model_config, *others, **more)
    for layer in layers:
        layer.decoder_type = decoder
    return config | {"decoder": decoder}


def _cut_again(files: list[Path]) -> None:
    ranks = [load_file(file) for file in files]
    for name in [name for name in ranks[0] if name.endswith("mlp.fc.weight")]:
        bits = torch.cat([rank[name].view(torch.uint8) for rank in ranks])
        shares = zip(*(half.chunk(len(files)) for half in bits.chunk(2)), strict=True)
        for rank, halves in zip(ranks, shares, strict=True):
            rank[name] = torch.cat(halves).view(rank[name].dtype)
    for file, rank in zip(files, ranks, strict=True):
        save_file(rank, file)
