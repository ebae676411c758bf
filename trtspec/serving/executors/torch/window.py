"""What the new rows of one sequence, or of several with as many rows each, write to the cache and see of it.

Grouped-query attention: the heads of a group share their keys, so here they are rows of one product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class Heads:
    """How many heads keys and values have each, and how many heads of queries share one of them."""

    keys: int
    group: int


class Window(Protocol):
    """The part of a flat batch that is handled together; `rows` counts all its rows."""

    rows: int

    def write(self, layer: int, keys_values: Tensor) -> None:
        """Stores the new `[rows, 2 * kv_heads, head_size]`, keys before values."""
        ...

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """`[rows, heads, head_size]` to `[rows, heads * head_size]`; each row sees its past and itself."""
        ...


class Single:
    """One sequence, `[layers, 2 * kv_heads, max_seq_len, head_size]`: all that it touches is a view."""

    def __init__(self, sequence: Tensor, heads: Heads, start: int, rows: int) -> None:
        self.rows, kv_heads = rows, heads.keys
        seen = sequence[:, None, :, : start + rows]
        self._new = seen[:, 0, :, start:].transpose(1, 2).unbind(0)
        self._keys, self._values = seen[:, :, :kv_heads].unbind(0), seen[:, :, kv_heads:].unbind(0)
        self._mask = _mask([start], rows, heads.group, sequence)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._new[layer].copy_(keys_values)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        return _attend(queries, self._keys[layer], self._values[layer], self._mask)


class Batch:
    """Several sequences, in `slots` of `[layers, slots, 2 * kv_heads, max_seq_len, head_size]`.

    What they see is gathered as far as the longest reaches, for one product instead of one for each.
    """

    def __init__(
        self, store: Tensor, heads: Heads, slots: Sequence[int], starts: Sequence[int], rows: int
    ) -> None:
        self.rows, self._kv_heads, end = rows * len(slots), heads.keys, max(starts) + rows
        device = store.device
        self._slots = torch.tensor(slots, device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(rows, device=device)
        kinds = torch.arange(2 * heads.keys, device=device)
        self._place = (self._slots.repeat_interleave(rows)[:, None], kinds, positions.view(-1, 1))
        self._layers, self._seen = store.unbind(0), store[:, :, :, :end].unbind(0)
        self._mask = _mask(starts, rows, heads.group, store)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._layers[layer].index_put_(self._place, keys_values)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        seen = self._seen[layer].index_select(0, self._slots)
        return _attend(queries, seen[:, : self._kv_heads], seen[:, self._kv_heads :], self._mask)


def _mask(starts: Sequence[int], rows: int, group: int, like: Tensor) -> Tensor | None:
    """0 where a row may look and -inf where not, or None where all may look anywhere.

    `[sequences, 1, rows * group, end]` in the dtype of `like`, the heads of a group beside each other.
    """
    if rows == 1 and len(set(starts)) == 1:
        return None
    device, end = like.device, max(starts) + rows
    last = torch.tensor(starts, device=device)[:, None] + torch.arange(rows, device=device)
    hidden = torch.arange(end, device=device) > last.repeat_interleave(group, 1)[:, None, :, None]
    return torch.zeros(hidden.shape, dtype=like.dtype, device=device).masked_fill_(hidden, float("-inf"))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`keys` and `values` are `[sequences, kv_heads, end, head_size]`, `queries` the rows of all."""
    total, heads, head_size = queries.shape
    sequences, kv_heads = keys.shape[:2]
    rows, group = total // sequences, heads // kv_heads
    grouped = queries.view(sequences, rows, kv_heads, group, head_size).transpose(1, 2)
    grouped = grouped.reshape(sequences, kv_heads, rows * group, head_size)
    mixed = F.scaled_dot_product_attention(grouped, keys, values, mask)
    mixed = mixed.view(sequences, kv_heads, rows, group * head_size).transpose(1, 2)
    return mixed.reshape(total, heads * head_size)
