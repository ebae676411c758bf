"""Threads for calls that block and may never return: a pool, and calls awaited for a bounded time."""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from trtspec.serving.errors import Busy


class PooledCall:
    """A call in the pool; `is_given_up` if nobody waits for it any more before it `is_over`."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.is_running = self.is_given_up = self.is_over = False


class ThreadPool:
    """Runs up to `size` calls at once, first come, first served.

    A thread whose call was given up ends with that, and is replaced by another, so that a call that never
    returns blocks no other. At most `size` threads are replaced; then calls wait. The threads are daemons, so
    that a call that hangs does not keep the process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        # A thread that waits here is woken once for a call. Behind a Condition it waits for its lock too.
        self._waiting: queue.SimpleQueue[PooledCall | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = self._lost = 0
        self._due = 0
        """The number of calls that wait or run, without those that were given up."""
        self._is_closed = False

    @property
    def is_lost(self) -> bool:
        """Says whether calls wait until one that was given up returns."""
        return self._lost == 2 * self._size

    def submit(self, work: Callable[[], None]) -> PooledCall:
        """Queues `work`, which must not raise."""
        job = PooledCall(work)
        with self._lock:
            self._due += 1
            self._grow()
        self._waiting.put(job)
        return job

    def give_up(self, job: PooledCall) -> bool:
        """Gives a call up; returns True if it does not run: it is over, or will never begin."""
        with self._lock:
            if job.is_over:
                return True
            job.is_given_up = True
            self._due -= 1
            if job.is_running:
                self._lost += 1
                self._grow()
            return not job.is_running

    def close(self) -> None:
        """Drops the calls that wait; each thread ends with the call that it runs."""
        with self._lock:
            self._is_closed = True
            threads = self._threads
        for _ in range(threads):
            self._waiting.put(None)

    def _grow(self) -> None:
        """Starts a thread if there are more calls than threads for them."""
        fit = self._threads - self._lost
        if fit < min(self._due, self._size) and self._threads < 2 * self._size and not self._is_closed:
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            with self._lock:
                if self._is_closed:
                    break
                if job.is_given_up:
                    continue
                job.is_running = True
            job.work()
            with self._lock:
                job.is_running, job.is_over = False, True
                if job.is_given_up:
                    self._lost -= 1
                    break
                self._due -= 1
        with self._lock:
            self._threads -= 1
            self._grow()


# An abandoned call gets the processor only when nothing else needs it.
_NICENESS = 10


class BoundedCalls:
    """Makes calls on threads of its own, one after another, each in at most `cpu_s` seconds of CPU time.

    A call that takes longer is abandoned: it goes on, and nothing waits for it. At most two abandoned calls
    run at once.
    """

    def __init__(self, cpu_s: float, name: str) -> None:
        self._limit_s = cpu_s
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
