"""The keys and values of all sequences, on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.serving.executors.torch.engine import EngineConfig


@dataclass(frozen=True, slots=True)
class Span:
    """`rows` new positions of the sequence in `slot`, from `start` on; what lies before is in the cache."""

    slot: int
    start: int
    rows: int


@dataclass(frozen=True, slots=True)
class Window:
    """What one span writes and sees, layer by layer: views into the cache.

    new:    `[2 * kv_heads, rows, head_size]`, keys before values
    keys:   `[kv_heads, head_size, end]`
    values: `[kv_heads, end, head_size]`
    mask:   `[rows, end]`, 0 where a row may look and -inf where not; None for a single row, which sees all
    """

    rows: int
    new: tuple[Tensor, ...]
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]
    mask: Tensor | None


class Cache:
    """`[layers, slots, 2 * kv_heads, max_seq_len, head_size]` in the model's dtype.

    On a CPU, memory that no sequence has reached is never touched and so costs nothing.
    """

    def __init__(self, config: EngineConfig, slots: int, device: torch.device) -> None:
        self._kv_heads = config.num_kv_heads
        shape = (config.num_layers, slots, 2 * self._kv_heads, config.limits.max_seq_len, config.head_size)
        self._store = torch.empty(shape, dtype=config.dtype, device=device)

    def window(self, span: Span) -> Window:
        sequence = self._store[:, span.slot, :, : span.start + span.rows]
        return Window(
            span.rows,
            sequence[:, :, span.start :].unbind(0),
            sequence[:, : self._kv_heads].transpose(2, 3).unbind(0),
            sequence[:, self._kv_heads :].unbind(0),
            self._causal(span) if span.rows > 1 else None,
        )

    def copy(self, source: int, target: int, length: int) -> None:
        """Makes the first `length` positions of one slot those of another."""
        self._store[:, target, :, :length] = self._store[:, source, :, :length]

    def _causal(self, span: Span) -> Tensor:
        shape = (span.rows, span.start + span.rows)
        mask = torch.full(shape, float("-inf"), dtype=self._store.dtype, device=self._store.device)
        return mask.triu_(span.start + 1)
