"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) as products of complex numbers."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from trtspec.serving.errors import EngineLoadError


def rotations(
    head_size: int, base: float, scaling: dict[str, Any] | None, length: int, device: torch.device
) -> Tensor:
    """Returns the rotation of each pair of a head by position: complex64 `[length, 1, head_size / 2]`."""
    turns = _scaled(1 / torch.tensor(base) ** (torch.arange(0, head_size, 2).float() / head_size), scaling)
    angles = torch.outer(torch.arange(length).float(), turns)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1).to(device)


def pair_up(rows: Tensor, heads: int) -> Tensor:
    """Returns the rows of a q or k projection, reordered so that the halves of each head are interleaved.

    Attention does not depend on the order of a head's elements as long as q and k agree, and neighbours are
    what a complex product takes.
    """
    return rows.view(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).reshape(rows.shape)


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Turns `heads` `[rows, heads, head_size]` in place by `rotation` `[rows, 1, head_size / 2]`."""
    single = heads.float()
    torch.view_as_complex(single.view(*single.shape[:2], -1, 2)).mul_(rotation)
    if single is not heads:
        heads.copy_(single)


def _scaled(turns: Tensor, scaling: dict[str, Any] | None) -> Tensor:
    """Returns the turns per position for a longer context; `scaling` is Hugging Face's `rope_scaling`."""
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "default":
        return turns
    try:
        factor = float(scaling["factor"])
        if kind == "linear":
            return turns / factor
        if kind == "llama3":
            low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
            context = float(scaling["original_max_position_embeddings"])
        else:
            raise EngineLoadError("rotary_scaling", f"rope_type {kind!r} is not linear or llama3")
    except KeyError as missing:
        raise EngineLoadError("rotary_scaling", f"{missing} is missing for rope_type {kind!r}") from None
    # Llama 3.1: long waves are stretched, short ones kept, those between blended.
    blend = ((context * turns / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return turns * (blend + (1 - blend) / factor)
