"""The KV cache: the keys and values of all sequences, on the device, in a memory of slots.

The new rows of one or several sequences write and attend to a view of it.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterable, Sequence
from itertools import accumulate
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from trtspec.serving.executors.torch.budget import capacity, held
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import KernelAttention, KernelView, has_kernels
from trtspec.serving.executors.torch.spans import SIZES, Span, batches


class CacheView(Protocol):
    """The view of a part of a step's rows."""

    rows: int
    """The number of rows of the part."""

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """Stores new keys and values, and returns the attention `[rows, heads * head_size]` of new queries.

        `heads` has the queries, the keys and the values, `[rows, heads + 2 * kv_heads, head_size]`. Each row
        sees its past and itself.
        """


class CausalMask:
    """Makes the masks by which a position sees all its past, or the last `window` positions with itself.

    A mask covers only the positions that a step sees, so its size depends on the sequences and not on
    `max_seq_len`. `heads` is the number of heads that share keys.
    """

    def __init__(self, window: int | None, heads: int, dtype: torch.dtype, device: torch.device) -> None:
        self._window, self._heads, self._dtype, self._device = window, heads, dtype, device

    def first(self, start: int) -> int:
        """Returns the first position that a row at `start`, or a later one, may see."""
        return 0 if self._window is None else max(start + 1 - self._window, 0)

    def mask(self, starts: Sequence[int], rows: int) -> Tensor | None:
        """Returns `[sequences, 1, rows, positions]`: 0 where a row sees a position, -inf elsewhere.

        It is None if all are 0. For several sequences each row is repeated for the heads that share keys, as
        in `_attend`. The positions are from `first` of the smallest start to the last row of the largest.
        """
        low, high = min(starts), max(starts)
        if rows == 1 and low == high:
            return None
        heads = 1 if len(starts) == 1 else self._heads
        last, first = high + rows - 1, self.first(low)
        # Each row of the mask is a part of one line: the mask of the last row, followed by -inf for its
        # future. An earlier row is the same line, shifted by its distance from the last row.
        length = 2 * last - low + 1 - first
        line = torch.full((length,), float("-inf"), dtype=self._dtype, device=self._device)
        line[self.first(last) - first : last + 1 - first].zero_()
        parts = [last - start - row for start in starts for row in range(rows) for _ in range(heads)]
        every = line.unfold(0, last + 1 - first, 1)
        mask = every.index_select(0, torch.tensor(parts, device=self._device))
        return mask.view(len(starts), 1, rows * heads, -1)


class Sight:
    """The mask of each layer, `masks[of_layers[layer]]`. The first mask shows the most positions.

    `cap` bounds the scores of attention, as in Gemma 2; None for no bound.
    """

    def __init__(self, masks: Sequence[CausalMask], of_layers: Sequence[int], cap: float | None) -> None:
        self._masks, self._of_layers, self.cap = masks, of_layers, cap

    def first(self, start: int) -> int:
        """Returns the first position that any layer sees from `start` on."""
        return self._masks[0].first(start)

    def looks(self, starts: Sequence[int], rows: int) -> list[tuple[int, Tensor | None]]:
        """Returns for each layer the distance from `first` to its first position, and its mask from there."""
        low = min(starts)
        looks = [(mask.first(low) - self.first(low), mask.mask(starts, rows)) for mask in self._masks]
        return [looks[number] for number in self._of_layers]


class SequenceView:
    """The view of one sequence, `[layers, 2 * kv_heads, capacity, head_size]`, without a copy."""

    def __init__(self, slot: Tensor, kv_heads: int, start: int, rows: int, sight: Sight) -> None:
        self.rows = rows
        self._new = slot[:, :, start : start + rows].transpose(1, 2).unbind(0)
        seen = slot[:, None, :, sight.first(start) : start + rows]
        self._keys, self._values = seen[:, :, :kv_heads].unbind(0), seen[:, :, kv_heads:].unbind(0)
        self._looks, self._cap = sight.looks([start], rows), sight.cap

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        queries = heads.shape[1] - self._new[layer].shape[1]
        self._new[layer].copy_(heads[:, queries:])
        return _attend(
            heads[:, :queries], self._keys[layer], self._values[layer], self._looks[layer], self._cap
        )


class BatchView:
    """The view of several sequences, each `[layers, 2 * kv_heads, capacity, head_size]`.

    The keys and values that the sequences see are gathered in `gathered`, `[sequences, 2 * kv_heads,
    positions, head_size]`, for one product instead of one for each. All layers use the same memory, and with
    `is_shared` other batches of the step do too. The positions end with the last that any sequence sees.
    After a shorter sequence there are zeros, since a masked position must not be NaN.
    """

    def __init__(
        self,
        slots: Sequence[Tensor],
        kv_heads: int,
        starts: Sequence[int],
        rows: int,
        sight: Sight,
        gathered: Tensor,
        is_shared: bool,
    ) -> None:
        self.rows, self._kv_heads, self._each, self._seen = rows * len(slots), kv_heads, rows, gathered
        end = max(starts) + rows
        first = end - gathered.shape[2]
        pairs = list(zip(slots, starts, strict=True))
        lengths = [start + rows - first for start in starts]
        self._copies = [gathered[i, :, :length] for i, length in enumerate(lengths)]
        padding = [gathered[i, :, length:] for i, length in enumerate(lengths) if first + length < end]
        if padding:
            torch._foreach_zero_(padding)
        self._padding = padding if is_shared else []
        self._parts = _by_layer(slot[:, :, first : start + rows] for slot, start in pairs)
        self._new = _by_layer(slot[:, :, start : start + rows].transpose(1, 2) for slot, start in pairs)
        self._looks, self._cap = sight.looks(starts, rows), sight.cap

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        queries = heads.shape[1] - 2 * self._kv_heads
        torch._foreach_copy_(self._new[layer], torch.split(heads[:, queries:], self._each))
        torch._foreach_copy_(self._copies, self._parts[layer])
        if self._padding:
            torch._foreach_zero_(self._padding)
        keys, values = self._seen[:, : self._kv_heads], self._seen[:, self._kv_heads :]
        return _attend(heads[:, :queries], keys, values, self._looks[layer], self._cap)


def _by_layer(parts: Iterable[Tensor]) -> list[tuple[Tensor, ...]]:
    """Returns the parts by layer, from tensors whose first dimension is the layers."""
    return list(zip(*(part.unbind(0) for part in parts), strict=True))


def _attend(
    queries: Tensor, keys: Tensor, values: Tensor, look: tuple[int, Tensor | None], cap: float | None
) -> Tensor:
    """Returns the attention of `queries`, the rows of all sequences one after another.

    `keys` and `values` are `[sequences, kv_heads, end, head_size]`; `look` is one of `Sight.looks`. For
    several sequences the heads that share keys become rows of one head, so that keys are read once for all of
    them. For one sequence they stay separate, to be divided among threads.
    """
    total, heads, head_size = queries.shape
    sequences = keys.shape[0]
    groups = heads if sequences == 1 else keys.shape[1]
    rows, shared = total // sequences, heads // groups
    queries = queries.view(sequences, rows, groups, shared, head_size).transpose(1, 2)
    queries = queries.reshape(sequences, groups, rows * shared, head_size)
    first, mask = look
    if first:
        keys, values = keys[:, :, first:], values[:, :, first:]
    if cap is None:
        mixed = F.scaled_dot_product_attention(queries, keys, values, mask, enable_gqa=True)
    else:
        mixed = _capped(queries, keys, values, mask, cap)
    mixed = mixed.view(sequences, groups, rows, shared, head_size)
    return mixed.transpose(1, 2).reshape(total, heads * head_size)


def _capped(queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, cap: float) -> Tensor:
    """Returns attention with scores bounded to `cap` before the softmax (Gemma 2, arXiv 2408.00118)."""
    shared = queries.shape[1] // keys.shape[1]
    keys, values = (heads.repeat_interleave(shared, 1) for heads in (keys, values))
    scores = queries @ keys.transpose(-1, -2) * queries.shape[-1] ** -0.5
    scores = torch.tanh(scores / cap) * cap
    if mask is not None:
        scores = scores + mask
    return scores.softmax(-1, dtype=torch.float32).to(values.dtype) @ values


class SlotMemory:
    """A tensor `[layers, heads, capacity, size]` for each slot, in one dtype.

    It grows by a share of its size at a time, so that all copies together cost a few times its content.
    Memories in `beside` for the same slots are copied and dropped with it.
    """

    def __init__(
        self, shape: tuple[int, int, int], max_seq_len: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        layers, heads, size = shape
        self._empty = torch.empty((layers, heads, 0, size), dtype=dtype, device=device)
        self._slots: dict[int, Tensor] = {}
        self._max_seq_len = max_seq_len
        self.beside: list[SlotMemory] = []

    @property
    def tokens(self) -> int:
        """The number of tokens that the allocated memory has room for."""
        return sum(slot.shape[2] for slot in self._slots.values())

    @torch.inference_mode()
    def copy(self, source: int, target: int, length: int, start: int = 0) -> None:
        """Copies the positions from `start` to `length`, as far as the source has them, to another slot."""
        for memory in (self, *self.beside):
            theirs = memory._slots.get(source, memory._empty)[:, :, start:length]
            end = start + theirs.shape[2]
            memory.grown(target, end)[:, :, start:end] = theirs

    @torch.inference_mode()
    def cut(self, slot: int, length: int, longest: int) -> None:
        """Frees what a sequence of at most `longest` tokens does not need; the first `length` stay."""
        for memory in (self, *self.beside):
            old = memory._slots.get(slot, memory._empty)
            layers, heads, has, size = old.shape
            if has > (needed := capacity(held(longest))):
                new = memory._slots[slot] = _memory((layers, heads, needed, size), old)
                new[:, :, :length] = old[:, :, :length]

    def drop(self, slot: int) -> None:
        """Frees the memory of a slot."""
        for memory in (self, *self.beside):
            memory._slots.pop(slot, None)

    def grown(self, slot: int, length: int) -> Tensor:
        """Returns the slot's tensor, with room for `length` tokens."""
        old = self._slots.get(slot, self._empty)
        if old.shape[2] >= length:
            return old
        layers, heads, has, size = old.shape
        new = _memory((layers, heads, min(capacity(length), self._max_seq_len), size), old)
        new[:, :, :has] = old
        self._slots[slot] = new
        return new


def _memory(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns a new tensor, on a CPU in its own mapped pages.

    Slots of many sizes would fragment a heap. Mapped pages are freed as soon as the slot is dropped.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    pages = mmap.mmap(-1, math.prod(shape) * like.element_size(), mmap.MAP_PRIVATE)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)


class Cache(SlotMemory):
    """The KV cache: a tensor `[layers, 2 * kv_heads, capacity, head_size]` for each slot.

    It has the model's dtype, and keys before values. `CacheSlots` limits the sizes.
    """

    def __init__(self, config: TorchEngineConfig, device: torch.device) -> None:
        shape = (config.num_layers, 2 * config.num_kv_heads, config.head_size)
        super().__init__(shape, config.limits.max_seq_len, config.dtype, device)
        self._kv_heads = config.num_kv_heads
        self._room = self._empty.new_empty(0)
        self._window, self._size = config.sliding_window, SIZES[device.type]
        sharing = config.num_heads // config.num_kv_heads
        windows = [self._window] if config.local is None else [None, config.local.window]
        masks = [CausalMask(window, sharing, config.dtype, device) for window in windows]
        of_layers = [
            int(config.local is not None and config.local.has(layer)) for layer in range(config.num_layers)
        ]
        self._sight = Sight(masks, of_layers, config.score_cap)
        self._attention = KernelAttention(config) if has_kernels(device) else None

    def views(self, spans: Sequence[Span]) -> list[CacheView]:
        """Returns views of the spans, in their order: one with kernels, else one for each of `batches`."""
        if self._attention is not None:
            slots = [self.grown(span.slot, span.start + span.rows) for span in spans]
            return [KernelView(self._attention, slots, spans)]
        _, heads, _, head_size = self._empty.shape
        bytes_per_token = heads * head_size * self._empty.element_size()
        views: list[CacheView] = []
        parts = batches(spans, self._window, bytes_per_token, self._size)
        gathered = [part.tokens for part in parts if len(part.spans) > 1]
        # In one thread batches that would evict one another from the processor's caches share memory. Several
        # threads would contend for its cache lines.
        is_shared = sum(gathered) * bytes_per_token > self._size.most and torch.get_num_threads() == 1
        rooms = iter(self._rooms([tokens * heads * head_size for tokens in gathered], is_shared))
        for part in parts:
            rows, starts = part.spans[0].rows, [span.start for span in part.spans]
            slots = [self.grown(span.slot, span.start + rows) for span in part.spans]
            if len(slots) == 1:
                views.append(SequenceView(slots[0], self._kv_heads, starts[0], rows, self._sight))
            else:
                room = next(rooms).view(len(slots), heads, -1, head_size)
                views.append(BatchView(slots, self._kv_heads, starts, rows, self._sight, room, is_shared))
        return views

    def _rooms(self, sizes: list[int], is_shared: bool) -> list[Tensor]:
        """Returns memory of `sizes` elements for the batches, the same for all if it `is_shared`."""
        if not sizes:
            return []
        ends = sizes if is_shared else list(accumulate(sizes))
        if self._room.numel() < max(ends):
            self._room = self._empty.new_empty(max(ends))
        return [self._room[end - size : end] for size, end in zip(sizes, ends, strict=True)]
