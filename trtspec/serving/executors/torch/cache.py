"""The KV cache: the keys and values of all sequences, on the device, in a memory of slots."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from trtspec.serving.executors.torch.budget import capacity, held
from trtspec.serving.executors.torch.cache_view import BatchView, CacheView, CausalMask, SequenceView, Sight
from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import KernelAttention, KernelView, has_kernels
from trtspec.serving.executors.torch.spans import SIZES, Span, batches


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
