"""The views of the cache that new rows of one sequence, or of several, write and attend to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F


class CacheView(Protocol):
    """The cache as one part of a flat batch sees it; `rows` counts all rows of the part."""

    rows: int

    def write(self, layer: int, keys_values: Tensor) -> None:
        """Stores the new `[rows, 2 * kv_heads, head_size]`, keys before values."""
        ...

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        """Returns the attention `[rows, heads * head_size]` of queries `[rows, heads, head_size]`.

        Each row sees its past and itself.
        """
        ...


class CausalMask:
    """Gives the masks by which a position sees all its past, or the last `window` positions with itself.

    Masks are cut from one table: `rows` consecutive positions between all their past and all their future.
    `heads` is how many of them share keys.
    """

    def __init__(
        self,
        rows: int,
        length: int,
        window: int | None,
        heads: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._length, self._window, self._heads = length, window or length, heads
        table = torch.full((rows, length + rows), float("-inf"), dtype=dtype, device=device)
        self._table = table.triu(length + 1)
        if self._window < length:
            self._table += table.tril_(length - self._window)

    def first(self, start: int) -> int:
        """Returns the first position that a row at `start`, or a later one, may see."""
        return max(start + 1 - self._window, 0)

    def mask(self, starts: Sequence[int], rows: int) -> Tensor | None:
        """Returns `[sequences, 1, rows, positions]`: 0 where a row may look, -inf elsewhere.

        It is None for all 0. In a batch each row stands there for each of the heads that share keys, as in
        `_attend`. The positions are those from `first` of the smallest start to the last row of the largest.
        """
        low, high = min(starts), max(starts)
        if rows == 1 and low == high:
            return None
        begin, end = self._length + self.first(low), self._length + high + rows
        parts = [self._cut(rows, begin - start, end - start) for start in starts]
        if len(parts) == 1:
            return parts[0][None, None]
        return torch.stack(parts).repeat_interleave(self._heads, 1)[:, None]

    def _cut(self, rows: int, begin: int, end: int) -> Tensor:
        """Returns a part of the table, which is continued with -inf: all beyond its end is future."""
        part = self._table[:rows, begin:end]
        missing = end - begin - part.shape[1]
        return F.pad(part, (0, missing), value=float("-inf")) if missing else part


class SequenceView:
    """The view of one sequence, `[layers, 2 * kv_heads, capacity, head_size]`, without a copy."""

    def __init__(self, slot: Tensor, kv_heads: int, start: int, rows: int, causal: CausalMask) -> None:
        self.rows = rows
        self._new = slot[:, :, start : start + rows].transpose(1, 2).unbind(0)
        seen = slot[:, None, :, causal.first(start) : start + rows]
        self._keys, self._values = seen[:, :, :kv_heads].unbind(0), seen[:, :, kv_heads:].unbind(0)
        self._mask = causal.mask([start], rows)

    def write(self, layer: int, keys_values: Tensor) -> None:
        self._new[layer].copy_(keys_values)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        return _attend(queries, self._keys[layer], self._values[layer], self._mask)


class BatchView:
    """The view of several sequences, each `[layers, 2 * kv_heads, capacity, head_size]`.

    Capacities differ. The keys and values that the sequences see are gathered side by side, layer after layer
    in the same memory, for one product instead of one for each. Behind a shorter sequence there are zeros,
    since a masked position may hold anything but NaN.
    """

    def __init__(
        self, slots: Sequence[Tensor], kv_heads: int, starts: Sequence[int], rows: int, causal: CausalMask
    ) -> None:
        self.rows, self._kv_heads, self._each = rows * len(slots), kv_heads, rows
        first, end = causal.first(min(starts)), max(starts) + rows
        _, heads, _, head_size = slots[0].shape
        self._seen = slots[0].new_zeros(len(slots), heads, end - first, head_size)
        self._places = [self._seen[i, :, : start + rows - first] for i, start in enumerate(starts)]
        pairs = list(zip(slots, starts, strict=True))
        self._parts = _by_layer(slot[:, :, first : start + rows] for slot, start in pairs)
        self._new = _by_layer(slot[:, :, start : start + rows].transpose(1, 2) for slot, start in pairs)
        self._mask = causal.mask(starts, rows)

    def write(self, layer: int, keys_values: Tensor) -> None:
        torch._foreach_copy_(self._new[layer], torch.split(keys_values, self._each))

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        torch._foreach_copy_(self._places, self._parts[layer])
        keys, values = self._seen[:, : self._kv_heads], self._seen[:, self._kv_heads :]
        return _attend(queries, keys, values, self._mask)


def _by_layer(parts: Iterable[Tensor]) -> list[tuple[Tensor, ...]]:
    """Returns the parts by layer, from tensors whose first dimension is the layers."""
    return list(zip(*(part.unbind(0) for part in parts), strict=True))


def _attend(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> Tensor:
    """Returns the attention of `queries`, the rows of all sequences one after another.

    `keys` and `values` are `[sequences, kv_heads, end, head_size]`. In a batch the heads that share keys go
    through as rows of one, so that keys are read once for all of them; one sequence has its heads to share
    out among threads.
    """
    total, heads, head_size = queries.shape
    sequences = keys.shape[0]
    groups = heads if sequences == 1 else keys.shape[1]
    rows, shared = total // sequences, heads // groups
    queries = queries.view(sequences, rows, groups, shared, head_size).transpose(1, 2)
    queries = queries.reshape(sequences, groups, rows * shared, head_size)
    mixed = F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
    mixed = mixed.view(sequences, groups, rows, shared, head_size)
    return mixed.transpose(1, 2).reshape(total, heads * head_size)
