"""A compiled kernel, which runs on the threads of PyTorch's own products.

A second pool of threads would compete for the processors with PyTorch's, which spin between products.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

import torch

log = logging.getLogger(__name__)

# The number of multiplications from which it pays to wake other threads: some 10 us of one thread.
_WORTH_SHARING = 2**19


class Kernel:
    """The kernel of one kind for elements of `dtype`, compiled for certain `sizes`.

    Its compilation takes seconds, unless numba has cached it before.
    """

    def __init__(self, kind: Literal["attention", "norm", "gate"], dtype: torch.dtype, *sizes: int) -> None:
        # numba may be missing.
        from trtspec.serving.executors.torch.kernels.compiled import attention, rows
        from trtspec.serving.executors.torch.kernels.compiled.arithmetic import ELEMENTS

        make = {"attention": attention.attention, "norm": rows.norm, "gate": rows.gate}[kind]
        self._compiled = make(ELEMENTS[dtype], *sizes)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        # A short call keeps Python's lock: to get it back may take ten times as long as the call.
        self._run_briefly = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        self._share = _openmp()

    def __call__(self, call: ctypes.Structure, work: int) -> None:
        """Runs all tasks of a call of `calls`, which have about `work` multiplications."""
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
