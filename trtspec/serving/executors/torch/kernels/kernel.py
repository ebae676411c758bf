"""The compiled kernels, which run on the threads of PyTorch's own products.

A second pool of threads would compete for the processors with PyTorch's, which spin between products.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Sequence
from ctypes import Structure, addressof, c_int64
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from sys import maxsize
from typing import Literal

import torch
from torch import Tensor

from trtspec.serving.executors.torch.engine import TorchEngineConfig
from trtspec.serving.executors.torch.kernels.calls import AttentionCall, RowsCall
from trtspec.serving.executors.torch.spans import Span

log = logging.getLogger(__name__)

# What an exponential costs, in products of two numbers.
_EXPONENTIAL = 8
# The number of multiplications from which it pays to wake other threads: some 10 us of one thread.
_WORTH_SHARING = 2**19


class Kernel:
    """The kernel of one kind for elements of `dtype`, compiled for certain `sizes`.

    Its compilation takes seconds, unless numba has cached it before.
    """

    def __init__(self, kind: Literal["attention", "norm", "gate"], dtype: torch.dtype, *sizes: int) -> None:
        # numba may be missing.
        from trtspec.serving.executors.torch.kernels import compiled

        make = {"attention": compiled.attention, "norm": compiled.norm, "gate": compiled.gate}[kind]
        self._compiled = make(compiled.ELEMENTS[dtype], *sizes)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        # A short call keeps Python's lock: to get it back may take ten times as long as the call.
        self._run_briefly = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        self._share = _openmp()

    def __call__(self, call: Structure, work: int) -> None:
        """Runs all tasks of a call of this kind, which have about `work` multiplications."""
        address = ctypes.addressof(call)
        if work < _WORTH_SHARING:
            self._run_briefly(address)
        elif self._share is None or torch.get_num_threads() == 1:
            self._run(address)
        else:
            self._share(self._compiled.address, address, 0, 0)


def has_kernels(device: torch.device) -> bool:
    """Says whether engines on a device have kernels; others use PyTorch's operations."""
    return device.type == "cpu" and _is_installed()


@cache
def _is_installed() -> bool:
    if find_spec("numba") is not None:
        return True
    log.warning("numba is not installed, so engines on a CPU are slower: pip install numba")
    return False


@cache
def _openmp() -> Callable[..., None] | None:
    """Returns `GOMP_parallel` of the OpenMP that PyTorch was linked with; None if there is none, as on macOS.

    It runs a C function on all threads of the caller's pool at once, and waits for them (libgomp's
    `parallel.c`; LLVM's OpenMP has the same). Without it kernels have one thread.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        share = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    share.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    share.restype = None
    return share


class Norm:
    """Computes `weight * x / hypot(|x|, floor)` of rows of `dtype`; `weight` is `[width]`."""

    def __init__(self, weight: Tensor, floor: float, dtype: torch.dtype) -> None:
        self._kernel, self._weight = Kernel("norm", dtype), weight.float().contiguous()
        self._dtype, self._width, self._floor = dtype, len(weight), floor

    def __call__(self, x: Tensor) -> Tensor:
        """Returns rows `[rows, width]` of such rows."""
        assert x.dtype == self._dtype
        x = x.contiguous()
        result = torch.empty_like(x)
        addresses = x.data_ptr(), result.data_ptr(), self._weight.data_ptr()
        call = RowsCall(0, len(x), self._width, *addresses, self._floor)
        self._kernel(call, 2 * x.numel())
        return result


class Gate:
    """Computes `silu(a) * b` of rows of `dtype`, each of which is `a` and `b`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._kernel, self._dtype = Kernel("gate", dtype), dtype

    def __call__(self, x: Tensor) -> Tensor:
        """Returns rows `[rows, width]` of `[rows, 2 * width]`."""
        assert x.dtype == self._dtype
        x = x.contiguous()
        rows, width = x.shape
        result = x.new_empty(rows, width // 2)
        call = RowsCall(0, rows, width, x.data_ptr(), result.data_ptr())
        self._kernel(call, _EXPONENTIAL * result.numel())
        return result


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
