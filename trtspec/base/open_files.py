"""Raises the number of files that this process may have open, which bounds how many clients it serves."""

from __future__ import annotations

import resource

_BESIDES = 256


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
