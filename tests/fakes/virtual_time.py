"""A loop that never waits: its clock jumps to the next timer as soon as there is nothing else to do."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
Events = list[tuple[selectors.SelectorKey, int]]


class _Jumping(selectors.SelectSelector):
    """Lets the time that it was to wait pass at once."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> Events:
        assert timeout is not None, "all wait for what will never happen"
        self.seconds += timeout
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs what uses no threads; the same coroutine always takes the same course."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.seconds


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine; fails for tasks that it leaves, and for what goes wrong in callbacks."""
    loop, unheard = VirtualLoop(), list[dict[str, Any]]()
    loop.set_exception_handler(lambda _, context: unheard.append(context))
    try:
        result = loop.run_until_complete(main)
        assert (asyncio.all_tasks(loop), unheard) == (set(), [])
        return result
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
