"""Folders of heads as their own tools write them: configurations, and tensors by name, dtype and shape.

`tests/data/heads` has what each `writer` wrote, but for the numbers in the weights.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

_DATA = Path(__file__).parents[1] / "data" / "heads"
_HIDDEN_SIZE = 16
TARGET: dict[str, Any] = {
    "hidden_size": 16,
    "vocab_size": 24,
    "num_hidden_layers": 8,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "dtype": torch.float32,
}
"""The sizes of a target that they fit."""
_DTYPES = {"F32": torch.float32, "I64": torch.int64, "BOOL": torch.bool}


def written(name: str) -> dict[str, Any]:
    """Returns what was written: its `config`, and its `tensors` with dtype and shape."""
    found: dict[str, Any] = json.loads((_DATA / f"{name}.json").read_text())
    return found


def write_head(folder: Path, name: str, **config: Any) -> Path:
    """Writes the folder; keywords replace keys of its configuration, None removes one.

    Of its vocabulary every second token of the target is in the head's, the first ones.
    """
    found = written(name)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        name: torch.rand(shape, generator=generator).mul(0.2).to(_DTYPES[dtype])
        for name, (dtype, shape) in found["tensors"].items()
    }
    if "d2t" in tensors:
        size = len(tensors["d2t"])
        tensors["d2t"] = torch.arange(size)
        tensors["t2d"] = torch.zeros_like(tensors["t2d"])
        tensors["t2d"][: 2 * size : 2] = True
    folder.mkdir(parents=True)
    save_file(tensors, folder / ("medusa_lm_head.safetensors" if name == "medusa" else "model.safetensors"))
    values = found["config"] | config
    values = {key: value for key, value in values.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def write_head_for(target: Path, folder: Path, name: str) -> Path:
    """Writes a random head of the target's sizes, which knows every second one of its tokens."""
    write_head(folder, name)
    theirs = json.loads((target / "config.json").read_text())
    factor = theirs["hidden_size"] // _HIDDEN_SIZE
    sizes = {24: theirs["vocab_size"], 12: theirs["vocab_size"] // 2}
    (weights,) = folder.glob("*.safetensors")
    generator = torch.Generator().manual_seed(1)
    tensors = {
        name: torch.randn([sizes.get(size, size * factor) for size in tensor.shape], generator=generator).mul(
            0.3
        )
        for name, tensor in load_file(weights).items()
    }
    if "d2t" in tensors:
        tensors["d2t"] = torch.arange(sizes[12])
        tensors["t2d"] = torch.arange(sizes[24]) % 2 == 0
    save_file(tensors, weights)

    def fitted(key: str, value: Any) -> Any:
        if isinstance(value, dict):
            return {inner: fitted(inner, each) for inner, each in value.items()}
        if key in ("vocab_size", "draft_vocab_size"):
            return sizes[value]
        if key == "max_position_embeddings":
            return theirs[key]
        return value * factor if key in ("hidden_size", "intermediate_size", "head_dim") else value

    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(fitted("", config)))
    return folder
