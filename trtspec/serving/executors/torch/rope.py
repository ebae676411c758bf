"""Rotary position embedding (Su et al. 2021, arXiv 2104.09864) as products of complex numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from trtspec.serving.errors import EngineLoadError

Scale = Callable[[Tensor, float, dict[str, Any]], tuple[Tensor, float]]


def rotations(
    head_size: int,
    base: float,
    scaling: dict[str, Any] | None,
    length: int,
    device: torch.device,
    share: float = 1.0,
) -> Tensor:
    """Returns the rotation of each pair of a head by position: complex64 `[length, 1, head_size / 2]`.

    With the scaling `yarn` or `longrope` it also scales the pairs. Only the first `share` of each head is
    rotated; the rotation of other pairs is 1.
    """
    turned = int(head_size * share)
    turns = 1 / torch.tensor(base) ** (torch.arange(0, turned, 2).float() / turned)
    turns, size = _scaled(turns, base, scaling, length)
    angles = torch.outer(torch.arange(length).float(), turns)
    rest = torch.ones(length, (head_size - turned) // 2, dtype=torch.complex64)
    return torch.cat([torch.polar(torch.full_like(angles, size), angles), rest], 1).unsqueeze(1).to(device)


def pair_up(rows: Tensor, heads: int, share: float = 1.0) -> Tensor:
    """Returns the rows of a q or k projection, reordered so that the two elements of a pair are neighbours.

    A pair has an element of each half of the first `share` of a head. A complex product needs neighbours.
    Attention does not depend on the order of a head's elements, which is the same in q and k.
    """
    whole = rows.view(heads, -1, *rows.shape[1:])
    turned = int(whole.shape[1] * share)
    pairs = whole[:, :turned].reshape(heads, 2, -1, *rows.shape[1:]).transpose(1, 2).flatten(1, 2)
    return torch.cat([pairs, whole[:, turned:]], 1).reshape(rows.shape)


def rotate(heads: Tensor, rotation: Tensor) -> None:
    """Rotates `heads` `[rows, heads, head_size]` in place by `rotation` `[rows, 1, head_size / 2]`."""
    single = heads.float()
    torch.view_as_complex(single.view(*single.shape[:2], -1, 2)).mul_(rotation)
    if single is not heads:
        heads.copy_(single)


def _scaled(turns: Tensor, base: float, scaling: dict[str, Any] | None, length: int) -> tuple[Tensor, float]:
    """Returns the turns per position for a longer context, and what a pair's length is multiplied with.

    `scaling` is Hugging Face's `rope_scaling`, and the longest text has `length` tokens.
    """
    scaling = scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    kinds: dict[str, Scale] = {
        "linear": lambda turns, _, scaling: (turns / float(scaling["factor"]), 1.0),
        "llama3": _llama3,
        "yarn": _yarn,
        "longrope": partial(_longrope, length=length),
    }
    scale = kinds.get(kind)
    if kind == "default":
        return turns, 1.0
    if scale is None:
        raise EngineLoadError("rotary_scaling", f"rope_type {kind!r} is not linear, llama3, yarn or longrope")
    try:
        return scale(turns, base, scaling)
    except KeyError as missing:
        raise EngineLoadError("rotary_scaling", f"{missing} is missing for rope_type {kind!r}") from None


def _llama3(turns: Tensor, base: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """Llama 3.1: long waves are stretched, short ones kept, those between blended."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    context = float(scaling["original_max_position_embeddings"])
    blend = ((context * turns / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return turns * (blend + (1 - blend) / float(scaling["factor"])), 1.0


def _yarn(turns: Tensor, base: float, scaling: dict[str, Any]) -> tuple[Tensor, float]:
    """YaRN (Peng et al. 2023, arXiv 2309.00071): pairs are blended by how often they turn in the context."""
    factor, context = float(scaling["factor"]), float(scaling["original_max_position_embeddings"])
    pairs = turns.shape[0]

    def pair(rotations: float) -> float:
        """Returns which pair turns so often within the context."""
        return pairs * math.log(context / (rotations * 2 * math.pi)) / math.log(base)

    first = max(math.floor(pair(float(scaling.get("beta_fast", 32.0)))), 0)
    last = min(math.ceil(pair(float(scaling.get("beta_slow", 1.0)))), 2 * pairs - 1)
    kept = 1 - ((torch.arange(pairs).float() - first) / max(last - first, 0.001)).clamp(0, 1)
    size = 0.1 * math.log(factor) + 1 if factor > 1 else 1.0
    return turns * (kept + (1 - kept) / factor), size


def _longrope(turns: Tensor, base: float, scaling: dict[str, Any], length: int) -> tuple[Tensor, float]:
    """LongRoPE (Ding et al. 2024, arXiv 2402.13753): a factor for each pair, and one size for all.

    transformers switches to the long factors once a sequence is long, and computes all its keys anew. Here
    other sequences and later rounds reuse cached keys, so an engine for long sequences always uses the long
    factors, as vLLM does (`phi3_long_rope_scaled_rope.py`).
    """
    context, factor = float(scaling["original_max_position_embeddings"]), float(scaling["factor"])
    factors = torch.tensor(scaling["long_factor" if length > context else "short_factor"])
    size = math.sqrt(1 + math.log(factor) / math.log(context)) if factor > 1 else 1.0
    return turns / factors, size
