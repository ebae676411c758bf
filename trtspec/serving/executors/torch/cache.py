"""The KV cache: the keys and values of all sequences, on the device."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from trtspec.serving.executors.torch.budget import capacity
from trtspec.serving.executors.torch.cache_view import BatchView, CacheView, CausalMask, SequenceView
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.spans import SIZES, Span, batches


class Cache:
    """The KV cache, with a tensor `[layers, 2 * kv_heads, capacity, head_size]` for each slot.

    It is in the model's dtype, keys before values. A slot's tensor grows with its sequence, by a share of its
    size at a time, so that all copies together cost a few times its content. `CacheSlots` limits the sizes.
    """

    def __init__(self, config: TorchEngineConfig, device: torch.device) -> None:
        self._kv_heads, self._max_seq_len = config.num_kv_heads, config.limits.max_seq_len
        self._shape = (config.num_layers, 2 * config.num_kv_heads, 0, config.head_size)
        self._empty = torch.empty(self._shape, dtype=config.dtype, device=device)
        self._slots: dict[int, Tensor] = {}
        self._room = self._empty.new_empty(0)
        self._window, self._size = config.sliding_window, SIZES[device.type]
        sharing = config.num_heads // config.num_kv_heads
        self._causal = CausalMask(config.sliding_window, sharing, config.dtype, device)

    @property
    def tokens(self) -> int:
        """Returns for how many tokens memory is taken."""
        return sum(slot.shape[2] for slot in self._slots.values())

    def views(self, spans: Sequence[Span]) -> list[CacheView]:
        """Returns a view for each of the `batches` of spans, in the order of the spans."""
        _, heads, _, head_size = self._shape
        bytes_per_token = heads * head_size * self._empty.element_size()
        views: list[CacheView] = []
        parts = batches(spans, self._window, bytes_per_token, self._size)
        gathered = [part.tokens for part in parts if len(part.spans) > 1]
        # In one thread batches that would push one another out of its caches gather in the same
        # memory. Several threads would take its lines from one another.
        is_shared = sum(gathered) * bytes_per_token > self._size.most and torch.get_num_threads() == 1
        rooms = iter(self._rooms([tokens * heads * head_size for tokens in gathered], is_shared))
        for part in parts:
            rows, starts = part.spans[0].rows, [span.start for span in part.spans]
            slots = [self._grown(span.slot, span.start + rows) for span in part.spans]
            if len(slots) == 1:
                views.append(SequenceView(slots[0], self._kv_heads, starts[0], rows, self._causal))
            else:
                room = next(rooms).view(len(slots), heads, -1, head_size)
                views.append(BatchView(slots, self._kv_heads, starts, rows, self._causal, room, is_shared))
        return views

    def copy(self, source: int, target: int, length: int) -> None:
        """Copies the first `length` positions of one slot to another."""
        self._grown(target, length)[:, :, :length] = self._slots[source][:, :, :length]

    def drop(self, slot: int) -> None:
        """Frees the memory of a slot."""
        self._slots.pop(slot, None)

    def _rooms(self, sizes: list[int], is_shared: bool) -> list[Tensor]:
        """Returns memory of so many elements for each batch to gather in, the same for all or its own."""
        if not sizes:
            return []
        ends = sizes if is_shared else list(accumulate(sizes))
        if self._room.numel() < max(ends):
            self._room = self._empty.new_empty(max(ends))
        return [self._room[end - size : end] for size, end in zip(sizes, ends, strict=True)]

    def _grown(self, slot: int, length: int) -> Tensor:
        """Returns the slot's tensor, with room for `length` tokens."""
        old = self._slots.get(slot, self._empty)
        if old.shape[2] >= length:
            return old
        layers, heads, held, head_size = old.shape
        new = _memory((layers, heads, min(capacity(length), self._max_seq_len), head_size), old)
        new[:, :, :held] = old
        self._slots[slot] = new
        return new


def _memory(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns a new tensor, on a CPU in pages mapped for it alone.

    Slots of many sizes that come and go would fragment a heap; mapped pages go back as soon as they are
    dropped.
    """
    if like.device.type != "cpu":
        return like.new_empty(shape)
    pages = mmap.mmap(-1, math.prod(shape) * like.element_size(), mmap.MAP_PRIVATE)
    return torch.frombuffer(pages, dtype=like.dtype).view(shape)
