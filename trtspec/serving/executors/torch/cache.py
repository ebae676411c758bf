"""The keys and values of all sequences, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from trtspec.serving.executors.torch.engine import EngineConfig
from trtspec.serving.executors.torch.scheduler import CHUNK
from trtspec.serving.executors.torch.window import Batch, Causal, Single, Window


@dataclass(frozen=True, slots=True)
class Span:
    """`rows` new positions of the sequence in `slot`, from `start` on; what lies before is in the cache."""

    slot: int
    start: int
    rows: int


class Cache:
    """`[layers, slots, 2 * kv_heads, max_seq_len, head_size]` in the model's dtype, keys before values.

    On a CPU, memory that no sequence has reached is never touched and so costs nothing.
    """

    def __init__(self, config: EngineConfig, slots: int, device: torch.device) -> None:
        self._kv_heads = config.num_kv_heads
        shape = (config.num_layers, slots, 2 * self._kv_heads, config.limits.max_seq_len, config.head_size)
        self._store = _zeros(shape, config.dtype, device)
        self._causal = Causal(CHUNK, config.limits.max_seq_len, config.sliding_window, config.dtype, device)

    def windows(self, spans: Sequence[Span]) -> list[Window]:
        """What each run of spans with the same number of rows writes and sees, in the order of the spans."""
        windows: list[Window] = []
        for rows, run in groupby(spans, key=lambda span: span.rows):
            group = list(run)
            slots, starts = [span.slot for span in group], [span.start for span in group]
            if len(group) == 1:
                windows.append(
                    Single(self._store[:, slots[0]], self._kv_heads, starts[0], rows, self._causal)
                )
            else:
                windows.append(Batch(self._store, self._kv_heads, slots, starts, rows, self._causal))
        return windows

    def copy(self, source: int, target: int, length: int) -> None:
        """Makes the first `length` positions of one slot those of another."""
        self._store[:, target, :, :length] = self._store[:, source, :, :length]


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros, since a masked position may hold anything but NaN; on a CPU NumPy's, which are not written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    flat = torch.from_numpy(np.zeros(np.prod(shape) * dtype.itemsize, np.uint8))
    return flat.view(dtype).view(shape)
