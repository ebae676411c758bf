"""A time limit for an awaitable that works alike on all Pythons."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

T = TypeVar("T")


async def within(seconds: float | None, work: Awaitable[T]) -> T:
    """Returns the result of the work. If it takes longer, cancels it and raises `asyncio.TimeoutError`.

    Before Python 3.12 `asyncio.wait_for` loses a cancellation that comes as the work ends, so the cancelled
    task goes on (python/cpython#86296).
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
