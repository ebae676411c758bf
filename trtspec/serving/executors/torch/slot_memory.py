"""The memory of slots: a tensor for each, on the device, that grows with its sequence."""

from __future__ import annotations

import math
import mmap

import torch
from torch import Tensor

from trtspec.serving.executors.torch.budget import capacity


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

    def drop(self, slot: int) -> None:
        """Frees the memory of a slot."""
        for memory in (self, *self.beside):
            memory._slots.pop(slot, None)

    def grown(self, slot: int, length: int) -> Tensor:
        """Returns the slot's tensor, with room for `length` tokens."""
        old = self._slots.get(slot, self._empty)
        if old.shape[2] >= length:
            return old
        layers, heads, held, size = old.shape
        new = _memory((layers, heads, min(capacity(length), self._max_seq_len), size), old)
        new[:, :, :held] = old
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
