"""Calls that may take any time, and that are awaited for a bounded time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from trtspec.serving.errors import Busy
from trtspec.serving.thread_pool import ThreadPool

# An abandoned call gets the processor only when nothing else needs it.
_NICENESS = 10


class BoundedCalls:
    """Makes calls on threads of its own, one after another, each in at most `limit_s` seconds of CPU time.

    A call that takes longer is abandoned: it goes on, and nothing waits for it. At most two abandoned calls
    run at once.
    """

    def __init__(self, limit_s: float, name: str) -> None:
        self._limit_s = limit_s
        self._threads = ThreadPool(1, name)

    def make(self, work: Callable[[], None]) -> None:
        """Calls `work`, which must not raise, and returns when it has returned.

        Raises `TimeoutError` when it abandons the call, and `Busy` while two abandoned calls are running.
        """
        if self._threads.is_lost:
            raise Busy("calls that took too long are still running")
        call = _Call(work)
        pooled = self._threads.submit(call)
        while not call.is_over.wait(self._limit_s):
            # On a busy machine the call may have had less CPU time than that.
            if call.took_s > self._limit_s:
                self._threads.give_up(pooled)
                call.step_back()
                raise TimeoutError

    def close(self) -> None:
        """Ends each thread once its call has returned."""
        self._threads.close()


class _Call:
    def __init__(self, work: Callable[[], None]) -> None:
        self._work, self.is_over = work, threading.Event()
        self._thread: tuple[int, int, float] | None = None

    def __call__(self) -> None:
        clock = time.pthread_getcpuclockid(threading.get_ident())
        self._thread = threading.get_native_id(), clock, time.clock_gettime(clock)
        try:
            self._work()
        finally:
            self.is_over.set()

    @property
    def took_s(self) -> float:
        """The CPU time of the call so far, in seconds."""
        if self._thread is None:
            return 0.0
        _, clock, begin = self._thread
        with suppress(OSError):  # The thread is gone, and the call over.
            return time.clock_gettime(clock) - begin
        return 0.0

    def step_back(self) -> None:
        """Lowers the priority of the call's thread. Linux counts niceness by thread."""
        if self._thread:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._thread[0], _NICENESS)
