"""The arguments of calls of kernels: one C structure for each kind.

Addresses are of contiguous memory that outlives the call. Sizes are numbers of elements. Threads take tasks
of a call by increasing `next_task`, which is 0 at first.
"""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64


def _integers(*names: str) -> tuple[tuple[str, type[c_int64]], ...]:
    return tuple((name, c_int64) for name in names)


# The first fields of every call.
_TASKS = _integers("next_task", "tasks")


class RowsCall(Structure):
    """A function of each of the `rows` `[tasks, width]`, with rows of `result`. Each row is a task.

    A norm has a float32 `weight` `[width]`, and the `floor` of a row's length.
    """

    _fields_ = (*_TASKS, *_integers("width", "rows", "result", "weight"), ("floor", c_double))


class AttentionCall(Structure):
    """The attention of the new rows of several sequences to their cached keys and values, in one layer.

    `texts` is an int64 table with a line for each sequence: the address of its slot, `[layers, 2 * kv_heads,
    capacity, head_size]`, its capacity, the position of its first new row, the number of its new rows, and
    their first index in `rows`. `rows` is `[rows, heads + 2 * kv_heads, head_size]`, with queries, keys and
    values, and `result` is `[rows, heads * head_size]`. `sharing` heads share keys. A row sees the last
    `window` positions, itself included. Scores are bounded to `cap` unless it is 0. Each sequence has
    `kv_heads * parts` tasks.
    """

    _fields_ = (
        *_TASKS,
        *_integers("texts", "parts", "kv_heads", "sharing", "layer", "window", "rows", "result"),
        *(("scale", c_double), ("cap", c_double)),
    )
