"""The number of threads for the steps of an engine on a CPU.

The threads of a product wait for one another at its end. A step has a product every few tens of microseconds,
so they spin. If another program runs on one of their processors, all wait until the scheduler gives it back,
for milliseconds each time, and two threads are three to seven times slower than one. If they slept instead,
they would wake too late for the next product, at half the speed of one thread. Beside programs that take a
processor only for a moment, such as this server's own threads, two threads are faster with many rows, and
slower with one. So fewer threads are tried when processors are missing, and used if similar steps take less
time.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from trtspec.serving.executors.torch.host import look

log = logging.getLogger(__name__)

# The seconds of steps that are judged together: some time slices of the scheduler.
_WINDOW_S = 0.03
# The share of one processor that may be missing before fewer threads are tried.
_MISSING = 0.15
# The seconds until the next try, doubled after each try that is not faster. A try is a window of slow steps,
# so tries cost a few per cent at first and then less than one.
_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 4.0
# The largest time of a better number relative to the one before, and the weight of a step in the mean time.
_FASTER, _WEIGHT = 0.97, 0.25


def usable_threads(busy: int = 0) -> int:
    """Returns the largest number of threads for a step, at most the number that torch is set to.

    `busy` is the number of processors that other threads of this process keep busy. They are left out here,
    because `ThreadCount` counts their time as that of steps, and would not see that they are missing.
    """
    most, reason = replace(look(), busy=busy).threads
    asked = torch.get_num_threads()
    if asked < most:
        most, reason = asked, "torch.set_num_threads"
    log.info("steps run on up to %d threads: %s", most, reason)
    return most


@dataclass
class Try:
    """A try of a number of threads. Times are in seconds."""

    threads: int
    took: float = 0.0
    """The time of all steps of kinds with a known time."""
    usual: float = 0.0
    """The time that these steps would have taken before."""
    since: float = 0.0
    """The time of all steps since the try began."""

    @property
    def is_over(self) -> bool:
        """True if there were enough steps of known kinds, or too many of others."""
        return self.took >= _WINDOW_S or self.since >= 4 * _WINDOW_S


class ThreadCount:
    """Sets the number of threads: at most `most`, and fewer where those are faster beside other programs.

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
        self._usual: dict[tuple[int, int], float] = {}
        self._try: Try | None = None
        self._pause, self._next_try = _PAUSE_S, 0.0
        self._is_short = False

        self._before = torch.get_num_threads()
        set_threads(most)

    def reset(self) -> None:
        """Sets the number of threads that the process began with."""
        self._set_threads(self._before)

    def note(self, wall_s: float, cpu_s: float, engine: int, rows: int) -> None:
        """Notes a step of `rows` rows in `wall_s` seconds, `cpu_s` of CPU time; ignores one without rows."""
        if self.most == 1 or not rows:
            return
        kind = engine, round(4 * math.log2(rows))
        usual = self._usual.get(kind)
        if self._try is not None:
            self._try.since += wall_s
            if usual is not None:
                self._try.took, self._try.usual = self._try.took + wall_s, self._try.usual + usual
            if self._try.is_over:
                self._judge(self._try)
            return
        self._usual[kind] = wall_s if usual is None else usual + _WEIGHT * (wall_s - usual)
        self._wall, self._cpu = self._wall + wall_s, self._cpu + cpu_s
        if self._wall >= _WINDOW_S:
            missing = self.now - self._cpu / self._wall
            self._wall = self._cpu = 0.0
            self._look(missing)

    def _look(self, missing: float) -> None:
        """Begins a try if it is time: of fewer threads if processors are missing, else of more."""
        was_short, self._is_short = self._is_short, missing > _MISSING
        if self._clock() < self._next_try:
            return
        if self.now > 1 and self._is_short:
            if was_short:  # One window may be short by chance.
                self._begin(max(self.now - math.ceil(missing - _MISSING), 1))
        elif self.now < self.most:
            self._begin(min(2 * self.now, self.most))

    def _begin(self, threads: int) -> None:
        self._try = Try(threads)
        self._set_threads(threads)

    def _judge(self, tried: Try) -> None:
        self._try, self._is_short = None, False
        if tried.took < _FASTER * tried.usual:
            log.debug("steps run on %d threads, of %d", tried.threads, self.most)
            self.now, self._pause = tried.threads, _PAUSE_S
            self._usual = {kind: usual * tried.took / tried.usual for kind, usual in self._usual.items()}
        else:
            self._set_threads(self.now)
            self._pause = min(2 * self._pause, _LONGEST_PAUSE_S)
        self._next_try = self._clock() + self._pause
