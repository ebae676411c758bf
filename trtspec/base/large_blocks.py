"""The memory of large bodies, which a process is to give back."""

from __future__ import annotations

import ctypes

# mallopt(3): blocks of at least so many bytes are mapped, and unmapped as soon as they are free.
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20


def give_back_large_blocks() -> None:
    """Has this process give memory of large blocks back as soon as they are free.

    By default glibc stops to map them after the first that is freed, and keeps what it has instead: 600 MB
    for forty bodies of 15 MiB at once. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)
