"""NVIDIA ModelOpt's exporter of TensorRT-LLM checkpoints, for every family."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from modelopt.torch.export import export_tensorrt_llm_checkpoint, model_config_export
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

DECODERS = {
    "gemma2": "gemma2", "gemma3_text": "gemma3",
    "llama": "llama", "mistral": "llama", "mixtral": "llama", "phi3": "phi3", "qwen2": "qwen",
    "qwen2_moe": "qwen", "qwen3": "qwen", "qwen3_moe": "qwen",
}  # fmt: skip


def export(
    model: PreTrainedModel, dtype: torch.dtype, folder: Path, tensor: int = 1, pipeline: int = 1
) -> None:
    """Writes the checkpoint; the exporter changes the model that it is given.

    Of Phi-3 and Gemma it makes all tensors, but no `config.json` unless TensorRT-LLM is installed: that is
    made as for `AS_IF`. And it cuts `mlp.fc` across, though each rank needs its share of both halves.
    """
    family = DECODERS[model.config.model_type]
    with torch.inference_mode(), patch.object(model_config_export, "convert_to_tensorrt_llm_config", _config):
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


AS_IF = {"phi3": "llama", "gemma2": "gemma", "gemma3": "gemma"}
_original = model_config_export.convert_to_tensorrt_llm_config


def _config(model_config: Any, *others: Any, **more: Any) -> Any:
    layers, decoder = model_config.layers, model_config.layers[0].decoder_type
    for layer in layers:
        layer.decoder_type = AS_IF.get(decoder, decoder)
    config = _original(model_config, *others, **more)
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
