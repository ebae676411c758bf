"""The time that a piece of work may take, on whichever Python."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Returns what the work returns, or raises; where it takes longer, ends it and raises `TimeoutError`.

    That is asyncio's own, another than Python's before 3.11. Before 3.12 `asyncio.wait_for` forgets a
    cancellation that comes as the work ends, and whoever was cancelled goes on (python/cpython#86296).
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait({task}, timeout=seconds)
        if not task.done():
            raise asyncio.TimeoutError
        return task.result()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
