"""Sets the limits of a process that serves many clients: its open files, and the memory of large bodies."""

from __future__ import annotations

import ctypes
import resource

from trtspec.base.errors import UnavailableError

# mallopt(3): blocks of at least so many bytes are mapped, and unmapped as soon as they are free.
_M_MMAP_THRESHOLD = -3
_LARGE = 1 << 20
_BESIDES, _FEWEST = 256, 16


def check_open_files() -> None:
    """Raises `UnavailableError` where this process may never open the files of a server with few clients."""
    hard, least = resource.getrlimit(resource.RLIMIT_NOFILE)[1], _BESIDES + 2 * _FEWEST
    if hard != resource.RLIM_INFINITY and hard < least:
        problem = f"at most {hard} may be open here (ulimit -Hn), and a server needs {least}"
        repair = "raise it: ulimit -Hn as root, LimitNOFILE= of systemd, or --ulimit nofile= of docker"
        raise UnavailableError("open files", problem, repair)


def give_back_large_blocks() -> None:
    """Has this process give memory of large blocks back as soon as they are free.

    By default glibc stops to map them after the first that is freed, and keeps what it has instead: 600 MB
    for forty bodies of 15 MiB at once. Other C libraries are left as they are.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt:
        mallopt(_M_MMAP_THRESHOLD, _LARGE)


def allow_connections(number: int) -> int:
    """Raises this process's limit of open files for so many connections; returns how many it allows.

    Each takes two files, one to the client and one to Triton. They may be fewer where the hard limit is
    lower, and more where the limit was higher already.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * number + _BESIDES
    allowed = max(soft, wanted if hard == resource.RLIM_INFINITY else min(wanted, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    return (allowed - _BESIDES) // 2
