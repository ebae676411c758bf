"""Targets with layers for multi-token prediction: a small Llama becomes one by its configuration."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

DEEPSEEK = {
    "architectures": ["DeepseekV3ForCausalLM"],
    "model_type": "deepseek_v3",
    "num_nextn_predict_layers": 1,
}


def make_mtp(folder: Path, *names: str, **config: Any) -> Path:
    """Gives a model such tensors, of 64 numbers each, and keys of its configuration; None removes one."""
    tensors = load_file(folder / "model.safetensors")
    save_file(tensors | {name: torch.zeros(64) for name in names}, folder / "model.safetensors")
    values = json.loads((folder / "config.json").read_text()) | config
    values = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return folder
