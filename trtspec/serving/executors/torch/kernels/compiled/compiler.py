"""Compiles kernels for this processor, or loads them from a cache.

numba caches compiled functions beside their source file, by the file's time. Each build has a copy of this
package, and would compile for seconds. So the cache is in the user's cache folder, by the content of these
files. numba reads pickles from it, so no other user may write to it.
"""

from __future__ import annotations

import hashlib
import logging
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types

from trtspec.serving.executors.torch.kernels.compiled.arithmetic import ARITHMETIC

log = logging.getLogger(__name__)


def compiled(call: type, body: Callable[[Any], None]) -> Any:
    """Returns the C function of a kernel whose argument is a pointer to a `call`."""
    signature = types.void(types.CPointer(numba.from_dtype(np.dtype(call))))
    file = _kept()
    if file is not None:
        body.__code__ = body.__code__.replace(co_filename=str(file))
        try:
            return numba.cfunc(signature, cache=True, **ARITHMETIC)(body)
        except OSError as error:
            log.warning("a kernel was compiled, but not kept: %s", error)
    return numba.cfunc(signature, **ARITHMETIC)(body)


@cache
def _kept() -> Path | None:
    """Returns the file beside which numba caches kernels, by its time; None if there is no such place."""
    sources = sorted(Path(__file__).parents[1].rglob("*.py"))
    digest = hashlib.sha256(b"\0".join(source.read_bytes() for source in sources)).hexdigest()
    try:
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        file = Path(home) / "trtspec" / "kernels" / digest / "kernels.py"
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = file.parent.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write to {file.parent}")
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    except (OSError, RuntimeError) as error:
        log.warning("kernels are compiled at each start, since they cannot be kept: %s", error)
        return None
    return file
