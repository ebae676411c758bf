"""A compiled kernel, called on the threads that PyTorch has for its own products.

A second pool of threads would fight for the processors with PyTorch's, which spin between products.
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

# Products of two numbers from which it is worth it to wake other threads: some 10 us of one.
_WORTH_SHARING = 2**19


class Kernel:
    """The kernel of one kind for elements of `dtype`, compiled for certain `sizes`.

    Compiling takes seconds where numba has not kept what it compiled before.
    """

    def __init__(self, kind: Literal["attention", "norm", "gate"], dtype: torch.dtype, *sizes: int) -> None:
        # numba is not everywhere.
        from trtspec.serving.executors.torch.kernels.compiled import attention, rows
        from trtspec.serving.executors.torch.kernels.compiled.arithmetic import ELEMENTS

        make = {"attention": attention.attention, "norm": rows.norm, "gate": rows.gate}[kind]
        self._compiled = make(ELEMENTS[dtype], *sizes)
        self._run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        # Python's lock is kept during a short call: to get it back may take ten times as long.
        self._run_briefly = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(self._compiled.address)
        self._share = _openmp()

    def __call__(self, call: ctypes.Structure, work: int) -> None:
        """Runs all tasks of a call of `calls`, which are about `work` products of two numbers."""
        address = ctypes.addressof(call)
        if work < _WORTH_SHARING:
            self._run_briefly(address)
        elif self._share is None or torch.get_num_threads() == 1:
            self._run(address)
        else:
            self._share(self._compiled.address, address, 0, 0)


def has_kernels(device: torch.device) -> bool:
    """Says whether engines on a device have kernels; elsewhere they have PyTorch's operations alone."""
    return device.type == "cpu" and _is_installed()


@cache
def _is_installed() -> bool:
    if find_spec("numba") is not None:
        return True
    log.warning("numba is not installed, so engines on a CPU are slower: pip install numba")
    return False


@cache
def _openmp() -> Callable[..., None] | None:
    """Returns `GOMP_parallel` of the OpenMP that PyTorch was linked with.

    It runs a C function at once on each thread of the caller's pool, and waits for them (libgomp's
    `parallel.c`; LLVM's OpenMP has the same). None where PyTorch has none, as on macOS: kernels have one
    thread there.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        share = ctypes.CDLL(str(library)).GOMP_parallel
    except (OSError, AttributeError):
        return None
    share.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    share.restype = None
    return share
