"""The arithmetic of kernels, and their compilation for this processor, or their loading from a cache.

bfloat16 and half precision are integers of 16 bits here, unsigned and signed, since numba has neither type.

numba caches compiled functions beside their source file, by the file's time. Each build has a copy of this
package, and would compile for seconds. So the cache is in trtspec's cache folder, by the content of these
files. numba reads pickles from it, so no other user may write to it.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import stat
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

ELEMENTS = {torch.float32: np.float32, torch.bfloat16: np.uint16, torch.float16: np.int16}

# Vectors add in any order. Infinities and NaN keep their meaning.
ARITHMETIC: dict[str, Any] = {"fastmath": {"reassoc", "contract", "nsz", "arcp"}, "error_model": "numpy"}
# It inlines a function into its caller before compilation, so that sizes are constants in it.
inlined = numba.njit(inline="always", **ARITHMETIC)

# float32 constants, since an operation with a Python float would be in float64.
ZERO, ONE = np.float32(0), np.float32(1)
_LEAST, _MOST = np.float32(-87), np.float32(88)
_LOG2_E, _LN2_HIGH = np.float32(1 / math.log(2)), np.float32(355 / 512)
_LN2_LOW = np.float32(math.log(2) - 355 / 512)
_TAYLOR = tuple(np.float32(1 / math.factorial(power)) for power in range(8))
_INT32, _INT64, _FLOAT = ir.IntType(32), ir.IntType(64), ir.FloatType()


@intrinsic
def take(_context: Any, call: Any, count: Any) -> Any:
    """Takes `count` tasks of a call, whose first field is the next one, and returns the first of them."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        taken = builder.bitcast(args[0], _INT64.as_pointer())
        return builder.atomic_rmw("add", taken, args[1], "monotonic")

    return types.int64(call, types.int64), generate


@intrinsic
def at_address(_context: Any, address: Any) -> Any:
    """Returns an address as a pointer."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], ir.IntType(8).as_pointer())

    return types.voidptr(address), generate


@intrinsic
def wide(_context: Any, element: Any) -> Any:
    """Returns an element in float32."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        if element == types.uint16:
            bits = builder.shl(builder.zext(args[0], _INT32), ir.Constant(_INT32, 16))
            return builder.bitcast(bits, _FLOAT)
        if element == types.int16:
            return builder.fpext(builder.bitcast(args[0], ir.HalfType()), _FLOAT)
        return args[0]

    return types.float32(element), generate


@intrinsic
def narrow(_context: Any, value: Any, array: Any) -> Any:
    """Returns a float32 as an element of an array, rounded to the nearest, and ties to even."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        value = args[0]
        if array.dtype == types.uint16:
            bits = builder.bitcast(value, _INT32)
            high = builder.lshr(bits, ir.Constant(_INT32, 16))
            odd = builder.and_(high, ir.Constant(_INT32, 1))
            rounded = builder.add(bits, builder.add(odd, ir.Constant(_INT32, 0x7FFF)))
            is_nan = builder.fcmp_unordered("uno", value, value)
            kept = builder.select(is_nan, ir.Constant(_INT32, 0x7FC00000), rounded)
            return builder.trunc(builder.lshr(kept, ir.Constant(_INT32, 16)), ir.IntType(16))
        if array.dtype == types.int16:
            return builder.bitcast(builder.fptrunc(value, ir.HalfType()), ir.IntType(16))
        return value

    return array.dtype(types.float32, array), generate


@intrinsic
def _nearest(_context: Any, value: Any) -> Any:
    """Returns the integer that is nearest to a float32, as a float32."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.rint", [_FLOAT]), args)

    return types.float32(types.float32), generate


@intrinsic
def _power_of_two(_context: Any, exponent: Any) -> Any:
    """Returns 2 to the power of a float32 that is an integer from -126 to 127."""

    def generate(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        biased = builder.add(builder.fptosi(args[0], _INT32), ir.Constant(_INT32, 127))
        return builder.bitcast(builder.shl(biased, ir.Constant(_INT32, 23)), _FLOAT)

    return types.float32(types.float32), generate


@inlined
def exp(x: Any) -> Any:
    """Returns e to the power of a float32, which is clamped to -87 and 88.

    It is 2^n times e^r, split as by Cody and Waite, with the Taylor series of r, which is at most ln(2) / 2.
    numba itself would call the C library for each element.
    """
    x = _LEAST if x < _LEAST else x
    x = _MOST if x > _MOST else x
    n = _nearest(x * _LOG2_E)
    r = x - n * _LN2_HIGH - n * _LN2_LOW
    series = _TAYLOR[7]
    series = series * r + _TAYLOR[6]
    series = series * r + _TAYLOR[5]
    series = series * r + _TAYLOR[4]
    series = series * r + _TAYLOR[3]
    series = series * r + _TAYLOR[2]
    return (series * r * r + r + ONE) * _power_of_two(n)


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
        file = _caches() / "kernels" / digest / "kernels.py"
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = file.parent.stat()
        if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            raise PermissionError(f"others may write to {file.parent}")
        os.close(os.open(file, os.O_CREAT | os.O_WRONLY, 0o600))
    except (OSError, RuntimeError) as error:
        log.warning("kernels are compiled at each start, since they cannot be kept: %s", error)
        return None
    return file


def _caches() -> Path:
    """Returns the folder of trtspec's caches, as `base/cache.py` does, which a build has no copy of."""
    if own := os.environ.get("TRTSPEC_CACHE"):
        return Path(own).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtspec"
