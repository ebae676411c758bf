"""The kernel of an `AttentionCall`: attention that reads keys and values once, block by block.

The softmax is that of FlashAttention (Dao et al. 2022, arXiv 2205.14135): the sums so far are rescaled
whenever a larger score comes.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import numba
import numpy as np
from numba import carray

from trtspec.serving.executors.torch.kernels.calls import AttentionCall
from trtspec.serving.executors.torch.kernels.compiled.compiler import (
    ONE,
    ZERO,
    at_address,
    compiled,
    exp,
    inlined,
    narrow,
    take,
    wide,
)

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
