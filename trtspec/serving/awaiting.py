"""Awaits several streams at once, and a result for a bounded time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Sequence
from contextlib import aclosing
from typing import TypeVar

T = TypeVar("T")


async def interleave(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[T, None]:
    """Yields the items of the streams as they come.

    It raises the first error of any stream. That ends the others, and so does closing the generator.
    """
    heard: asyncio.Queue[tuple[T] | asyncio.Task[None]] = asyncio.Queue()

    async def run(stream: AsyncGenerator[T, None]) -> None:
        async with aclosing(stream) as items:
            async for item in items:
                heard.put_nowait((item,))

    tasks = [asyncio.create_task(run(stream)) for stream in streams]
    for task in tasks:
        task.add_done_callback(heard.put_nowait)
    left = len(tasks)
    try:
        while left:
            found = await heard.get()
            if isinstance(found, tuple):
                yield found[0]
            else:
                found.result()
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


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
