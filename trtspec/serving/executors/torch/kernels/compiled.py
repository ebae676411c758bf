"""The kernels, their arithmetic, and their compilation for this processor, or their loading from a cache.

Attention reads keys and values once, block by block. Its softmax is that of FlashAttention (Dao et al. 2022,
arXiv 2205.14135): the sums so far are rescaled whenever a larger score comes.

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
from numba import carray, types
from numba.extending import intrinsic

from trtspec.serving.executors.torch.kernels.calls import AttentionCall, RowsCall

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
    file = _cache_file()
    if file is not None:
        body.__code__ = body.__code__.replace(co_filename=str(file))
        try:
            return numba.cfunc(signature, cache=True, **ARITHMETIC)(body)
        except OSError as error:
            log.warning("a kernel was compiled, but not kept: %s", error)
    return numba.cfunc(signature, **ARITHMETIC)(body)


@cache
def _cache_file() -> Path | None:
    """Returns the file beside which numba caches kernels, by its time; None if there is no such place."""
    sources = sorted(Path(__file__).parent.rglob("*.py"))
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


# The number of rows that a thread takes at a time.
_ROWS = 4


@cache
def norm(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that computes `weight * x / hypot(|x|, floor)` of each row `x`."""

    def kernel(call: Any) -> None:
        args = carray(call, 1)[0]
        rows = carray(at_address(args.rows), (args.tasks, args.width), element)
        result = carray(at_address(args.result), (args.tasks, args.width), element)
        weight = carray(at_address(args.weight), args.width, np.float32)
        first = take(call, _ROWS)
        while first < args.tasks:
            for number in range(first, min(first + _ROWS, args.tasks)):
                row, normed = rows[number], result[number]
                squares = np.float32(args.floor * args.floor)
                for i in range(args.width):
                    x = wide(row[i])
                    squares += x * x
                share = ONE / np.sqrt(squares)
                for i in range(args.width):
                    normed[i] = narrow(wide(row[i]) * share * weight[i], normed)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)


@cache
def gate(element: type) -> Any:
    """Returns the kernel of a `RowsCall` that computes `silu(x) * y` of each row, which is `x` and `y`."""

    def kernel(call: Any) -> None:
        args = carray(call, 1)[0]
        half = args.width // 2
        rows = carray(at_address(args.rows), (args.tasks, 2, half), element)
        result = carray(at_address(args.result), (args.tasks, half), element)
        first = take(call, _ROWS)
        while first < args.tasks:
            for number in range(first, min(first + _ROWS, args.tasks)):
                gates, others, gated = rows[number, 0], rows[number, 1], result[number]
                for i in range(half):
                    x = wide(gates[i])
                    gated[i] = narrow(x / (ONE + exp(-x)) * wide(others[i]), gated)
            first = take(call, _ROWS)

    return compiled(RowsCall, kernel)


# The positions whose keys and values stay in the processor's cache while all queries read them.
_BLOCK = 256
# The queries that read a key together, once for all of them.
_TOGETHER = 4
_TANH_IS_ONE, _NOTHING = np.float32(40), np.float32(-math.inf)


@numba.njit(fastmath=True)
def _largest(scores: Any, most: Any) -> Any:
    """Returns the largest of a block of scores and `most`. A NaN may count as any value."""
    for p in range(_BLOCK):
        most = max(most, scores[p])
    return most


@inlined
def _score(queries: Any, keys: Any, positions: int, head_size: int, scores: Any) -> None:
    """Writes the products `[4, positions]` of `queries` `[4, head_size]` and `keys` to `scores`."""
    q0, q1, q2, q3 = queries[0], queries[1], queries[2], queries[3]
    for p in range(positions):
        key = keys[p]
        s0 = s1 = s2 = s3 = ZERO
        for i in range(head_size):
            k = wide(key[i])
            s0 += q0[i] * k
            s1 += q1[i] * k
            s2 += q2[i] * k
            s3 += q3[i] * k
        scores[0, p], scores[1, p], scores[2, p], scores[3, p] = s0, s1, s2, s3


@inlined
def _squash(scores: Any, positions: int, cap: Any) -> None:
    """Bounds scores to `cap` by a hyperbolic tangent."""
    twice = np.float32(2) / cap
    for p in range(positions):
        x = scores[p] * twice
        grown = exp(x if x < _TANH_IS_ONE else _TANH_IS_ONE)
        scores[p] = cap * (grown - ONE) / (grown + ONE)


@inlined
def _fill(scores: Any, first: int, last: int, value: Any) -> None:
    """Writes a value before `first` and from `last` on."""
    for p in range(first):
        scores[p] = value
    for p in range(last, _BLOCK):
        scores[p] = value


@inlined
def _weigh(scores: Any, first: int, last: int, most: Any, head_size: int, mixed: Any) -> Any:
    """Turns the scores from `first` to `last` into weights relative to the largest score; others get 0.

    Returns the new largest score, the sum of the weights, and the factor of earlier sums, which `mixed` has
    already. Loops run over the whole block: a constant length is faster than fewer elements.
    """
    _fill(scores, first, last, _NOTHING)
    top = _largest(scores, most)
    shrink = ONE
    if top > most:
        shrink = exp(most - top)
        for i in range(head_size):
            mixed[i] *= shrink
    for p in range(_BLOCK):
        scores[p] = exp(scores[p] - top)
    _fill(scores, first, last, ZERO)
    total = ZERO
    for p in range(_BLOCK):
        total += scores[p]
    return top, total, shrink


@inlined
def _mix(weights: Any, values: Any, positions: int, head_size: int, mixed: Any) -> None:
    """Adds the weighted values of some positions to `mixed` `[4, head_size]`."""
    m0, m1, m2, m3 = mixed[0], mixed[1], mixed[2], mixed[3]
    whole = positions - positions % 4
    for p in range(0, whole, 4):
        v0, v1, v2, v3 = values[p], values[p + 1], values[p + 2], values[p + 3]
        a0, a1, a2, a3 = weights[0, p], weights[0, p + 1], weights[0, p + 2], weights[0, p + 3]
        b0, b1, b2, b3 = weights[1, p], weights[1, p + 1], weights[1, p + 2], weights[1, p + 3]
        c0, c1, c2, c3 = weights[2, p], weights[2, p + 1], weights[2, p + 2], weights[2, p + 3]
        d0, d1, d2, d3 = weights[3, p], weights[3, p + 1], weights[3, p + 2], weights[3, p + 3]
        for i in range(head_size):
            x0, x1, x2, x3 = wide(v0[i]), wide(v1[i]), wide(v2[i]), wide(v3[i])
            m0[i] += a0 * x0 + a1 * x1 + a2 * x2 + a3 * x3
            m1[i] += b0 * x0 + b1 * x1 + b2 * x2 + b3 * x3
            m2[i] += c0 * x0 + c1 * x1 + c2 * x2 + c3 * x3
            m3[i] += d0 * x0 + d1 * x1 + d2 * x2 + d3 * x3
    for p in range(whole, positions):
        value = values[p]
        a, b, c, d = weights[0, p], weights[1, p], weights[2, p], weights[3, p]
        for i in range(head_size):
            x = wide(value[i])
            m0[i] += a * x
            m1[i] += b * x
            m2[i] += c * x
            m3[i] += d * x


@inlined
def _slot(
    texts: Any, text: int, number: int, kv_heads: int, head_size: int, row_bytes: int, element: Any
) -> Any:
    """Returns the keys and values `[capacity, head_size]` of head `number` in a sequence's slot."""
    address, capacity = texts[text, 0], texts[text, 1]
    of_head = capacity * row_bytes
    keys = carray(at_address(address + number * of_head), (capacity, head_size), element)
    values = carray(at_address(address + (number + kv_heads) * of_head), (capacity, head_size), element)
    return keys, values


@inlined
def _read(rows: Any, first: int, head: int, sharing: int, scale: Any, count: int, queries: Any) -> None:
    """Writes `count` scaled queries of those that share the keys of a head, from number `first` on."""
    for number in range(count):
        row, shared = divmod(first + number, sharing)
        query = rows[row, head * sharing + shared]
        for i in range(queries.shape[1]):
            queries[number, i] = wide(query[i]) * scale


@inlined
def _write(mixed: Any, total: Any, first: int, head: int, sharing: int, count: int, result: Any) -> None:
    """Writes the results of the queries that `_read` has read: `mixed` over the sums of their weights."""
    for number in range(count):
        row, shared = divmod(first + number, sharing)
        written = result[row, head * sharing + shared]
        share = ONE / total[number]
        for i in range(mixed.shape[1]):
            written[i] = narrow(mixed[number, i] * share, written)


@cache
def attention(element: type, head_size: int) -> Any:
    """Returns the kernel of an `AttentionCall`, which also writes the new keys and values to the slots."""
    row_bytes = head_size * np.dtype(element).itemsize

    def kernel(call: Any) -> None:
        args = carray(call, 1)[0]
        kv_heads, sharing, window = args.kv_heads, args.sharing, args.window
        heads, cap = kv_heads * sharing, np.float32(args.cap)
        width = heads + 2 * kv_heads
        per_text = kv_heads * args.parts
        texts = carray(at_address(args.texts), (args.tasks // per_text, 5), np.int64)
        scores = np.empty((_TOGETHER, _BLOCK), np.float32)
        task = take(call, 1)
        while task < args.tasks:
            text = task // per_text
            start, new, before = texts[text, 2], texts[text, 3], texts[text, 4]
            head, part = task % per_text // args.parts, task % args.parts
            of_rows, of_result = before * width * row_bytes, before * heads * row_bytes
            rows = carray(at_address(args.rows + of_rows), (new, width, head_size), element)
            result = carray(at_address(args.result + of_result), (new, heads, head_size), element)
            of_layer = args.layer * 2 * kv_heads
            keys, values = _slot(texts, text, of_layer + head, kv_heads, head_size, row_bytes, element)

            # The queries are the heads of the first row, then those of the next.
            groups = (new * sharing + _TOGETHER - 1) // _TOGETHER
            begin, end = groups * part // args.parts, groups * (part + 1) // args.parts
            first = begin * _TOGETHER
            count = min(end * _TOGETHER, new * sharing) - first
            # Each part writes all keys and values that it reads. Other parts write the same.
            for row in range((first + count + sharing - 1) // sharing):
                keys[start + row] = rows[row, heads + head]
                values[start + row] = rows[row, heads + kv_heads + head]

            queries = np.zeros(((end - begin) * _TOGETHER, head_size), np.float32)
            mixed = np.zeros_like(queries)
            most, total = np.full(len(queries), -np.inf, np.float32), np.zeros(len(queries), np.float32)
            _read(rows, first, head, sharing, np.float32(args.scale), count, queries)

            oldest = max(0, start + first // sharing + 1 - window)
            newest = start + (first + count - 1) // sharing
            for at in range(oldest, newest + 1, _BLOCK):
                positions = min(_BLOCK, newest + 1 - at)
                for group in range(0, count, _TOGETHER):
                    _score(queries[group:], keys[at:], positions, head_size, scores)
                    for number in range(group, group + _TOGETHER):
                        of_query = scores[number - group]
                        if cap > 0:
                            _squash(of_query, positions, cap)
                        seen = start + (first + number) // sharing + 1 - at if number < count else 0
                        low, high = min(max(0, seen - window), positions), max(0, min(seen, positions))
                        top, sum_, shrink = _weigh(
                            of_query, low, high, most[number], head_size, mixed[number]
                        )
                        most[number], total[number] = top, total[number] * shrink + sum_
                    _mix(scores, values[at:], positions, head_size, mixed[group:])

            _write(mixed, total, first, head, sharing, count, result)
            task = take(call, 1)

    return compiled(AttentionCall, kernel)
