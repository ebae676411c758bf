"""Several completions of one prompt as one stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace

from trtspec.serving.completion import Delta


async def interleave(
    count: int, start: Callable[[int], AsyncGenerator[Delta, None]]
) -> AsyncGenerator[Delta, None]:
    """Yields the deltas of the streams `start(0)` to `start(count - 1)` as they come, with `sequence_index`.

    It raises the first error of any stream. That ends the others, and so does closing the generator.
    """
    heard: asyncio.Queue[Delta | asyncio.Task[None]] = asyncio.Queue()

    async def run(index: int) -> None:
        async with aclosing(start(index)) as deltas:
            async for delta in deltas:
                heard.put_nowait(replace(delta, sequence_index=index))

    tasks = [asyncio.create_task(run(index)) for index in range(count)]
    for task in tasks:
        task.add_done_callback(heard.put_nowait)
    left = count
    try:
        while left:
            found = await heard.get()
            if isinstance(found, Delta):
                yield found
            else:
                found.result()
                left -= 1
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
