"""Defines the arguments of kernels: one C structure for each kind.

`address` fields point to contiguous memory that outlives the call; sizes are counts of elements. The tasks of
a call are shared out by `next_task`, which is 0 at first.
"""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64

# What every call begins with.
_TASKS = (("next_task", c_int64), ("tasks", c_int64))


class RowsCall(Structure):
    """Rows `[tasks, width]` that become other rows at `result`, each a task.

    A norm has a float32 `weight` `[width]`, and the `floor` of a row's length.
    """

    _fields_ = (
        *_TASKS,
        ("width", c_int64),
        ("rows", c_int64),
        ("result", c_int64),
        ("weight", c_int64),
        ("floor", c_double),
    )


class AttentionCall(Structure):
    """The attention of the new rows of several texts in one layer, behind what the KV cache has of them.

    `texts` is an int64 table with a line for each: the address of its slot, `[layers, 2 * kv_heads, capacity,
    head_size]`, its capacity, the position of its first new row, how many rows are new, and where they begin
    in `rows`. These are `[rows, heads + 2 * kv_heads, head_size]`, queries, keys and values, and `result` is
    `[rows, heads * head_size]`. `sharing` heads share keys. A row sees the last `window` positions, with
    itself. Scores are bounded to `cap`, if it is not 0. Each text has `kv_heads * parts` tasks.
    """

    _fields_ = (
        *_TASKS,
        ("texts", c_int64),
        ("parts", c_int64),
        ("kv_heads", c_int64),
        ("sharing", c_int64),
        ("layer", c_int64),
        ("window", c_int64),
        ("rows", c_int64),
        ("result", c_int64),
        ("scale", c_double),
        ("cap", c_double),
    )
