"""The attention of the new rows of several sequences, which reads keys and values in place in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import addressof, c_int64
from sys import maxsize

import torch
from torch import Tensor

from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.kernels.kernel import AttentionCall, Kernel
from trtspec.serving.executors.torch.spans import Span

# The largest number of queries of a task. Early rows of a prompt see less, so their threads take more tasks.
_PART = 256


class KernelAttention:
    """The attention of all layers of one model."""

    def __init__(self, config: TorchEngineConfig) -> None:
        self.kernel = Kernel("attention", config.dtype, config.head_size)
        self.kv_heads, self.sharing = config.num_kv_heads, config.num_heads // config.num_kv_heads
        self.head_size, self.cap = config.head_size, config.score_cap or 0.0
        self.dtype, local = config.dtype, config.local
        self.windows = [
            (local.window if local and local.has(layer) else config.sliding_window) or maxsize
            for layer in range(config.num_layers)
        ]


class KernelView:
    """The view of several sequences, each in its slot, `[layers, 2 * kv_heads, capacity, head_size]`."""

    def __init__(self, attention: KernelAttention, slots: Sequence[Tensor], spans: Sequence[Span]) -> None:
        self.rows = sum(span.rows for span in spans)
        self._attention, self._slots = attention, slots
        heads, size = attention.kv_heads * attention.sharing, attention.head_size
        lines: list[int] = []
        first = looked_at = 0
        for slot, span in zip(slots, spans, strict=True):
            lines += slot.data_ptr(), slot.shape[2], span.start, span.rows, first
            first += span.rows
            looked_at += span.rows * (span.start + span.rows)
        self._texts = (c_int64 * len(lines))(*lines)
        self._work = 2 * looked_at * heads * size
        self._result = slots[0].new_empty(self.rows, heads * size)
        # The queries of a few sequences are divided, so that all threads have tasks.
        parts = max(
            -(-torch.get_num_threads() // (len(spans) * attention.kv_heads)),
            -(-max(span.rows for span in spans) * attention.sharing // _PART),
        )
        self._call = AttentionCall(
            tasks=len(spans) * attention.kv_heads * parts,
            texts=addressof(self._texts),
            parts=parts,
            kv_heads=attention.kv_heads,
            sharing=attention.sharing,
            result=self._result.data_ptr(),
            scale=size**-0.5,
            cap=attention.cap,
        )

    def attend(self, layer: int, heads: Tensor) -> Tensor:
        """Implements `CacheView.attend`. The next layer reuses the memory of the result."""
        assert heads.dtype == self._attention.dtype
        heads, call = heads.contiguous(), self._call
        call.next_task, call.layer, call.window = 0, layer, self._attention.windows[layer]
        call.rows = heads.data_ptr()
        self._attention.kernel(call, self._work)
        return self._result
