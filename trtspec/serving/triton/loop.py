"""An asyncio loop in a thread of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """All but `post` is called on other threads than the loop's, and waits."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def call(self, work: Callable[[], T]) -> T:
        """The result of a plain function, or what it raises."""
        return self.run(_called(work))

    def post(self, work: Callable[..., object], *arguments: Any) -> None:
        """Has it called soon."""
        self._loop.call_soon_threadsafe(work, *arguments)

    def every(self, seconds: float, work: Callable[[], object]) -> None:
        """Has it called on the loop now and every so many seconds, as long as the loop turns."""

        def again() -> None:
            work()
            self._loop.call_later(seconds, again)

        self.post(again)

    def end(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _called(work: Callable[[], T]) -> T:
    return work()
