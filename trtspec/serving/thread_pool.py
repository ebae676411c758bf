"""A pool of threads for calls that block and may never return."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable


class PooledCall:
    """A call in the pool; `is_given_up` once nobody waits for it any more."""

    def __init__(self, work: Callable[[], None]) -> None:
        self.work = work
        self.is_running = self.is_given_up = False


class ThreadPool:
    """Runs up to `size` calls at once, first come, first served.

    A thread whose call was given up ends with that, and is replaced by another, so that a call that never
    returns blocks no other. At most `size` threads are replaced; then calls wait. The threads are daemons, so
    that a call that hangs does not keep the process alive.
    """

    def __init__(self, size: int, name: str) -> None:
        self._size, self._name = size, name
        self._waiting: deque[PooledCall] = deque()
        self._changed = threading.Condition()
        self._threads = self._idle = self._lost = 0
        self._is_closed = False

    @property
    def is_lost(self) -> bool:
        """Says whether calls wait until one that was given up returns."""
        return self._lost == 2 * self._size

    def submit(self, work: Callable[[], None]) -> PooledCall:
        """Queues `work`, which must not raise."""
        job = PooledCall(work)
        with self._changed:
            self._waiting.append(job)
            self._go_on()
        return job

    def give_up(self, job: PooledCall) -> bool:
        """Gives a call up; returns True if it had not begun, and so never will."""
        with self._changed:
            job.is_given_up = True
            if not job.is_running:
                self._waiting = deque(other for other in self._waiting if other is not job)
                return True
            self._lost += 1
            self._go_on()
            return False

    def close(self) -> None:
        """Drops the calls that wait; each thread ends with the call that it runs."""
        with self._changed:
            self._is_closed = True
            self._waiting.clear()
            self._changed.notify_all()

    def _go_on(self) -> None:
        if self._idle >= len(self._waiting):
            self._changed.notify()
        elif self._threads - self._lost < self._size and self._threads < 2 * self._size:
            self._threads += 1
            threading.Thread(target=self._run, name=f"{self._name}-{self._threads}", daemon=True).start()

    def _run(self) -> None:
        while (job := self._next()) is not None:
            job.work()
            with self._changed:
                job.is_running = False
                if job.is_given_up:
                    self._lost -= 1
                    break
        with self._changed:
            self._threads -= 1
            self._go_on()

    def _next(self) -> PooledCall | None:
        with self._changed:
            while not self._waiting and not self._is_closed:
                self._idle += 1
                self._changed.wait()
                self._idle -= 1
            if self._is_closed:
                return None
            job = self._waiting.popleft()
            job.is_running = True
            return job
