"""What the new rows of a sequence, or of several with as many rows each, write to the cache and see of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


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

    def __init__(self, sequence: Tensor, kv_heads: int, start: int, rows: int) -> None:
        self.rows = rows
        seen = sequence[:, None, :, : start + rows]
        self._new = seen[:, 0, :, start:].transpose(1, 2).unbind(0)
        self._keys, self._values = seen[:, :, :kv_heads].unbind(0), seen[:, :, kv_heads:].unbind(0)
        self._mask = _mask([start], rows, sequence)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._new[layer].copy_(keys_values)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        return _attend(queries, self._keys[layer], self._values[layer], self._mask)


class Batch:
    """Several sequences, in `slots` of `[layers, slots, 2 * kv_heads, max_seq_len, head_size]`.

    What they see is gathered as far as the longest reaches, for one product instead of one for each.
    """

    def __init__(
        self, store: Tensor, kv_heads: int, slots: Sequence[int], starts: Sequence[int], rows: int
    ) -> None:
        self.rows, self._kv_heads, end = rows * len(slots), kv_heads, max(starts) + rows
        device = store.device
        self._slots = torch.tensor(slots, device=device)
        positions = torch.tensor(starts, device=device)[:, None] + torch.arange(rows, device=device)
        heads = torch.arange(2 * kv_heads, device=device)
        self._place = (self._slots.repeat_interleave(rows)[:, None], heads, positions.view(-1, 1))
        self._layers, self._seen = store.unbind(0), store[:, :, :, :end].unbind(0)
        self._mask = _mask(starts, rows, store)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._layers[layer].index_put_(self._place, keys_values)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        seen = self._seen[layer].index_select(0, self._slots)
        return _attend(queries, seen[:, : self._kv_heads], seen[:, self._kv_heads :], self._mask)


def _mask(starts: Sequence[int], rows: int, like: Tensor) -> Tensor | None:
    """`[sequences, 1, rows, end]` in the dtype of `like`: 0 where a row may look and -inf where not.

    None where every row may look anywhere.
    """
    if rows == 1 and len(set(starts)) == 1:
        return None
    last = torch.tensor([[start + row for row in range(rows)] for start in starts], device=like.device)
    hidden = torch.arange(max(starts) + rows, device=like.device) > last[:, None, :, None]
    return torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, float("-inf"))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """`keys` and `values` are `[sequences, kv_heads, end, head_size]`, `queries` the rows of all."""
    total, heads, head_size = queries.shape
    sequences = keys.shape[0]
    queries = queries.view(sequences, total // sequences, heads, head_size).transpose(1, 2)
    mixed = F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
    return mixed.transpose(1, 2).reshape(total, heads * head_size)
