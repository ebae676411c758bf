"""Taking turns: what several ways do at the same time, so that what else a machine does meets each alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from typing import Any

from trtspec.serving.executors.torch.device_thread import DeviceThread


class Clock(asyncio.SelectorEventLoop):
    """An event loop whose time stands still while it does not run."""

    def __init__(self) -> None:
        super().__init__()
        self._stood, self._since = 0.0, time.monotonic()

    def time(self) -> float:
        return time.monotonic() - self._stood

    def resume(self) -> None:
        self._stood += time.monotonic() - self._since

    def pause(self) -> None:
        self._since = time.monotonic()


class Turns:
    """A loop and the thread of its engines, which stand still between two turns."""

    def __init__(self) -> None:
        self.loop, self.device_thread, self._resume = Clock(), DeviceThread(), threading.Event()

    def turn(self, until: Coroutine[Any, Any, object]) -> None:
        """Goes on until that is done, and stops between two steps of the engines."""
        self.go_on()
        self.loop.run_until_complete(until)
        stopped, self._resume = threading.Event(), threading.Event()
        self.loop.run_until_complete(self._stop(stopped, self._resume))
        stopped.wait()
        self.loop.pause()

    def go_on(self) -> None:
        """Goes on, for good unless a turn ends."""
        self._resume.set()
        self.loop.resume()

    async def _stop(self, stopped: threading.Event, resume: threading.Event) -> None:
        def stop() -> None:
            stopped.set()
            resume.wait()

        self.device_thread.post(stop)
        await asyncio.sleep(0)
