"""Grouped-query attention of the new rows of each sequence over all that the sequence has said."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.cache import Window

# Rows from which the library's attention, which never holds all scores at once, is the faster one.
MANY_ROWS = 32


def attend(queries: Tensor, windows: Sequence[Window], layer: int) -> Tensor:
    """`queries` `[rows, heads, head_size]`, window after window, to `[rows, heads * head_size]`."""
    if len(windows) == 1:
        return _attend_one(queries, windows[0], layer)
    parts = torch.split(queries, [window.rows for window in windows])
    return torch.cat([_attend_one(part, window, layer) for part, window in zip(parts, windows, strict=True)])


def _attend_one(queries: Tensor, window: Window, layer: int) -> Tensor:
    rows, heads, head_size = queries.shape
    keys, values = window.keys[layer], window.values[layer]
    if rows >= MANY_ROWS:
        mixed = F.scaled_dot_product_attention(
            queries.transpose(0, 1)[None],
            keys.transpose(1, 2)[None],
            values[None],
            window.mask,
            enable_gqa=True,
        )
        return mixed[0].transpose(0, 1).reshape(rows, heads * head_size)

    # The heads of a group share their keys, so they are rows of one product.
    kv_heads, group = keys.shape[0], heads // keys.shape[0]
    scale = 1 / math.sqrt(head_size)
    if window.mask is None:
        grouped = queries.view(kv_heads, group, head_size)
        weights = torch.softmax(torch.bmm(grouped, keys).mul_(scale), -1)
        return torch.bmm(weights, values).view(1, heads * head_size)
    grouped = (
        queries.view(rows, kv_heads, group, head_size).permute(1, 2, 0, 3).reshape(kv_heads, -1, head_size)
    )
    scores = torch.baddbmm(window.mask.repeat(group, 1), grouped, keys, alpha=scale)
    mixed = torch.bmm(torch.softmax(scores, -1), values)
    return mixed.view(heads, rows, head_size).transpose(0, 1).reshape(rows, heads * head_size)
