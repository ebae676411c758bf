"""Calls of which nobody knows how long they take, and for which nobody waits too long."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from trtspec.serving.errors import Busy
from trtspec.serving.thread_pool import ThreadPool

# What has been given up gets the processor when nobody else wants it.
_NICENESS = 10


class BoundedCalls:
    """Makes calls on threads of its own, one after another, each in at most `limit_s` of a processor's time.

    A call that takes longer is left alone, to end whenever it does; at most two such calls are at work.
    """

    def __init__(self, limit_s: float, name: str) -> None:
        self._limit_s = limit_s
        self._threads = ThreadPool(1, name)

    def make(self, work: Callable[[], None]) -> None:
        """Returns when `work`, which must not raise, has returned.

        Raises `TimeoutError` where it is left, and `Busy` where it is not begun for others that were.
        """
        if self._threads.is_lost:
            raise Busy("calls that took too long are still running")
        call = _Call(work)
        pooled = self._threads.submit(call)
        while not call.is_over.wait(self._limit_s):
            # On a busy machine it may have had less than its time.
            if call.took_s > self._limit_s:
                self._threads.give_up(pooled)
                call.step_back()
                raise TimeoutError

    def close(self) -> None:
        """Ends the threads, each with the call that it makes."""
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
        """The processor's time that it has had, in seconds."""
        if self._thread is None:
            return 0.0
        _, clock, begin = self._thread
        with suppress(OSError):  # The thread is gone, and the call over.
            return time.clock_gettime(clock) - begin
        return 0.0

    def step_back(self) -> None:
        """Lets all others go first; Linux counts this by thread."""
        if self._thread:
            with suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, self._thread[0], _NICENESS)
