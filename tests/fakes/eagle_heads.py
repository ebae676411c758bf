"""Heads of EAGLE that TensorRT-LLM's engines take: a bias for `fc`, the target's sizes and rotation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from tests.fakes.heads import write_head_for


def write_eagle_for(target: Path, folder: Path, **config: Any) -> Path:
    """Writes a random head that fits the target; keywords replace keys of its configuration."""
    write_head_for(target, folder, "eagle")
    theirs = json.loads((target / "config.json").read_text())
    heads, hidden = theirs["num_attention_heads"], theirs["hidden_size"]
    shared = theirs.get("num_key_value_heads", heads)
    head_dim = theirs.get("head_dim") or hidden // heads
    path = folder / "model.safetensors"
    tensors = load_file(path)
    sizes = {"q_proj": (heads * head_dim, hidden), "o_proj": (hidden, heads * head_dim)}
    sizes |= dict.fromkeys(("k_proj", "v_proj"), (shared * head_dim, hidden))
    generator = torch.Generator().manual_seed(2)
    for name, size in sizes.items():
        tensors[f"layers.0.self_attn.{name}.weight"] = torch.randn(size, generator=generator)
    tensors["fc.bias"] = torch.randn(hidden, generator=generator)
    save_file(tensors, path)
    values = json.loads((folder / "config.json").read_text())
    values |= {"num_attention_heads": heads, "num_key_value_heads": shared, "head_dim": head_dim}
    values |= {
        key: theirs[key] for key in ("rope_theta", "rope_parameters", "rope_scaling") if theirs.get(key)
    }
    (folder / "config.json").write_text(json.dumps(values | config))
    return folder
