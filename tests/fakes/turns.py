"""Threads that run one at a time, in an order and by a clock that a seed decides."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence


class Turns:
    """Gives one thread at a time its turn; time passes between turns only.

    `longest` is the most seconds that pass at once, which is seldom.
    """

    def __init__(self, seed: int, longest: float) -> None:
        self._random, self._longest = random.Random(seed), longest
        self._now = 0.0
        self._wakes: dict[int, float] = {}
        self._turns: dict[int, threading.Semaphore] = {}
        self._given_back = threading.Semaphore(0)
        self._errors: list[BaseException] = []

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        """Lets others run until so many seconds have passed; 0 lets one run, or nobody."""
        me = threading.get_ident()
        self._wakes[me] = self._now + seconds
        self._given_back.release()
        self._turns[me].acquire()

    def run(self, jobs: Sequence[Callable[[], None]], most: int = 100_000) -> None:
        """Runs the jobs to their end; raises what one of them raises, and fails after `most` turns."""
        threads = [threading.Thread(target=self._job, args=(job,), daemon=True) for job in jobs]
        for thread in threads:
            thread.start()
            self._given_back.acquire()
        for _ in range(most):
            if self._errors:
                raise self._errors[0]
            if not self._wakes:
                return
            self._now += self._random.random() ** 12 * self._longest
            awake = [one for one, wakes in self._wakes.items() if wakes <= self._now]
            chosen = self._random.choice(awake) if awake else min(self._wakes, key=self._wakes.__getitem__)
            self._now = max(self._now, self._wakes.pop(chosen))
            self._turns[chosen].release()
            self._given_back.acquire()
        raise AssertionError("they come to no end")

    def _job(self, job: Callable[[], None]) -> None:
        self._turns[threading.get_ident()] = threading.Semaphore(0)
        self.sleep(0)
        try:
            job()
        except BaseException as error:
            self._errors.append(error)
        self._given_back.release()
