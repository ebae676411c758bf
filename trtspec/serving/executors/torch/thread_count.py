"""The number of threads that the steps of an engine on a CPU run on.

The threads of a product wait for one another at its end, and a step has a product every few tens of
microseconds: they spin. Where another program runs on one of their processors they all wait until the
scheduler gives it back, for milliseconds each time, and two threads are seven times slower than one. If they
slept instead, they would wake too late for the next product, at half the speed of one thread. So there are as
many threads as get a processor each, which shows in the processor time that they get.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import replace

import torch

from trtspec.serving.executors.torch.host import look

log = logging.getLogger(__name__)

# Seconds of steps that are judged together: some time slices of the scheduler.
_WINDOW_S = 0.03
# What may be missing of a processor for one thread before it counts as another program's.
_MISSING = 0.3
# Seconds until more threads are tried again, doubled each time that they do not get their processors. A try
# is a window of slow steps, so tries cost a few per cent at first and then less than one.
_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 4.0


def usable_threads(busy: int = 0) -> int:
    """Returns how many threads a step may take here; the program may have asked torch for fewer.

    `busy` is how many processors other threads of this process keep busy. They are left out, since their time
    counts as that of the process: `ThreadCount` would not see that they are missing.
    """
    most, reason = replace(look(), busy=busy).threads
    asked = torch.get_num_threads()
    if asked < most:
        most, reason = asked, "torch.set_num_threads"
    log.info("steps run on up to %d threads: %s", most, reason)
    return most


class ThreadCount:
    """Sets the number of threads: at most `most`, and fewer while other programs use the processors.

    It is used on the thread that makes the steps alone. `set_threads` and `clock` (in seconds) are those of
    the process.
    """

    def __init__(
        self,
        most: int,
        set_threads: Callable[[int], None] = torch.set_num_threads,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.most = self.now = most
        self._set_threads, self._clock = set_threads, clock
        self._wall = self._cpu = 0.0
        self._pause, self._next_try = _PAUSE_S, 0.0
        self._is_try = self._is_short = False

        set_threads(most)

    def reset(self) -> None:
        """Sets the number of threads that the process began with."""
        self._set_threads(self.most)

    def note(self, wall_s: float, cpu_s: float) -> None:
        """Notes a step that took `wall_s`, in which the process used `cpu_s` of all processors."""
        if self.most == 1:
            return
        self._wall, self._cpu = self._wall + wall_s, self._cpu + cpu_s
        if self._wall >= _WINDOW_S:
            missing = self.now - self._cpu / self._wall
            self._wall = self._cpu = 0.0
            self._look(missing)

    def _look(self, missing: float) -> None:
        was_short, self._is_short = self._is_short, missing > _MISSING
        if self._is_short and self.now > 1:
            if not (was_short or self._is_try):  # One window may be short by chance.
                return
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S) if self._is_try else _PAUSE_S
            self._next_try = self._clock() + self._pause
            self._change(max(self.now - math.ceil(missing - _MISSING), 1))
        elif self.now < self.most and self._clock() >= self._next_try:
            self._change(min(2 * self.now, self.most))
            self._is_try = True
        else:
            self._is_try = False

    def _change(self, threads: int) -> None:
        log.debug("steps run on %d threads, of %d", threads, self.most)
        self._is_try = self._is_short = False
        self.now = threads
        self._set_threads(threads)
