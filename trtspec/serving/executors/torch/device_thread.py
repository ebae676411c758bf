"""The device thread, which runs the steps of all engines on a device, and the number of threads for steps.

The threads of a product wait for one another at its end. A step has a product every few tens of microseconds,
so they spin. If another program runs on one of their processors, all wait until the scheduler gives it back,
for milliseconds each time, and two threads are three to seven times slower than one. If they slept instead,
they would wake too late for the next product, at half the speed of one thread. Beside programs that take a
processor only for a moment, such as this server's own threads, two threads are faster with many rows, and
slower with one. So fewer threads are tried when processors are missing, and used if similar steps take less
time.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

import torch

from trtspec.serving.executor import Response
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


class TurnOrder:
    """Decides which engine makes the next step. The draft engine comes before the target.

    The first engine with work makes it, so that no verification starts while drafts are proposed:
    verifications wait for one another and run as one batch. After `most_in_a_row` consecutive steps of the
    first engine, the next one with work makes a step. If that is the longest draft, every running draft is
    finished before the target goes on, which keeps batches together, and arriving requests cannot delay the
    target any longer.
    """

    def __init__(self, most_in_a_row: int) -> None:
        self.most_in_a_row = most_in_a_row
        self._passed = 0

    def next(self, has_work: Sequence[bool]) -> int | None:
        """Returns the index of the engine that makes the next step; None if none has work."""
        ready = [index for index, has in enumerate(has_work) if has]
        if len(ready) > 1 and self._passed < self.most_in_a_row:
            self._passed += 1
            return ready[0]
        self._passed = 0
        return ready[:2][-1] if ready else None


T = TypeVar("T")
Work = Callable[[], object]
Hear = Callable[[Response], None]


class Stepper(Protocol):
    """An engine that makes steps."""

    longest_draft: int
    """The largest number of draft tokens that the engine verifies in one step."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> int:
        """Makes one step, and returns its number of rows. It must not raise."""


class DeviceThread:
    """Runs steps without a pause, in `TurnOrder`, while an engine has work, and leaves the asyncio loop free.

    Calls from the loop come as one parcel for each of its iterations, so that requests which are made
    together run together. The thread reads them between two steps. The responses of a step go to the loop as
    one parcel too. After a step that ends a request the thread waits for the loop to handle the responses, at
    most as long as the step took. They lead to new requests, which can run with the waiting ones, and the
    loop's work would take a processor from a step that uses all.

    Engines are loaded and compute on this thread alone: each computing thread has its own OpenMP threads, and
    if these are more than the processors, OpenMP lets all of them sleep between two products. `threads`,
    which is called at the begin of the thread, returns the largest number of them for a step.
    """

    def __init__(self, threads: Callable[[], int] = usable_threads) -> None:
        self._threads = threads
        self._engines: list[Stepper] = []
        self._order = TurnOrder(most_in_a_row=1)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outgoing: list[Work] = []
        self._mail: SimpleQueue[list[Work]] = SimpleQueue()
        self._said: list[tuple[Hear, Response]] = []
        self._awaits_echo = self._is_over = False

    # On the loop's thread. While engines run, `join` is posted.

    def join(self, engine: Stepper) -> None:
        """Adds an engine without work. Engines that verify no drafts come first in `TurnOrder`."""
        self._engines = sorted([*self._engines, engine], key=lambda engine: engine.longest_draft > 0)
        self._order.most_in_a_row = max(engine.longest_draft for engine in self._engines) or 1

    def leave(self, engine: Stepper) -> None:
        """Removes an engine, and waits for the end of its step. The thread ends with the last engine."""
        self.call(lambda: self._engines.remove(engine))
        self._end_if_alone()

    def call(self, work: Callable[[], T]) -> T:
        """Calls `work` on the device thread, between two steps; returns its result, or raises its error."""
        done: Future[T] = Future()
        self._begin()
        self._flush(partial(_settle, done, work))
        try:
            return done.result()
        except BaseException:
            self._end_if_alone()
            raise

    def post(self, work: Callable[..., object], *arguments: object) -> None:
        """Schedules a call of `work` on the device thread, between two steps."""
        self._begin()
        if not self._outgoing:
            self._loop = asyncio.get_running_loop()
            self._loop.call_soon(self._flush)
        self._outgoing.append(partial(work, *arguments))

    def _begin(self) -> None:
        if self._thread is None:
            self._is_over = False
            self._thread = threading.Thread(target=self._run, name="trtspec-steps", daemon=True)
            self._thread.start()

    def _end_if_alone(self) -> None:
        if self._thread is not None and not self._engines:
            self._flush(self._end)
            self._thread.join()
            self._thread = None

    def _flush(self, *more: Work) -> None:
        parcel, self._outgoing = [*self._outgoing, *more], []
        if parcel:
            self._mail.put(parcel)

    def _deliver(self, said: list[tuple[Hear, Response]]) -> None:
        loop = asyncio.get_running_loop()
        for hear, response in said:
            try:
                hear(response)
            except Exception as error:  # An error of one listener must not stop the others.
                loop.call_exception_handler({"message": "a listener raised", "exception": error})
        # This runs after the tasks that wait for these responses, and after the tasks that those wake.
        loop.call_soon(lambda: loop.call_soon(self._flush, self._echo))

    # On the device thread.

    def say(self, hear: Hear, response: Response) -> None:
        """Schedules a call of `hear` on the loop, after the step."""
        self._said.append((hear, response))

    def _run(self) -> None:
        threads = ThreadCount(self._threads())
        while not self._is_over:
            has_work = [engine.has_work for engine in self._engines]
            self._read(wait=not any(has_work))
            turn = self._order.next([engine.has_work for engine in self._engines])
            took = 0.0
            if turn is not None:
                start, cpu = time.perf_counter(), time.process_time()
                rows = self._engines[turn].step()
                took = time.perf_counter() - start
                threads.note(took, time.process_time() - cpu, turn, rows)
            if self._said:
                self._send(took)
        threads.reset()

    def _read(self, wait: bool) -> None:
        """Handles all parcels that have come. With `wait` it waits for the first."""
        try:
            self._do(self._mail.get(wait))
            while True:
                self._do(self._mail.get_nowait())
        except Empty:
            pass

    def _do(self, parcel: list[Work]) -> None:
        for work in parcel:
            try:
                work()
            except Exception:  # An error of one request must not stop the others.
                log.exception("an engine could not handle a request")

    def _send(self, took: float) -> None:
        said, self._said = self._said, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, said)
        except RuntimeError:  # The loop is closed, and nothing waits for responses.
            return
        if not any(response.is_final for _, response in said):  # Only ended requests lead to new ones.
            return
        self._awaits_echo, until = True, time.perf_counter() + took
        while self._awaits_echo and (left := until - time.perf_counter()) > 0:
            try:
                self._do(self._mail.get(timeout=left))
            except Empty:
                return

    def _echo(self) -> None:
        self._awaits_echo = False

    def _end(self) -> None:
        self._is_over = True


def _settle(done: Future[T], work: Callable[[], T]) -> None:
    try:
        done.set_result(work())
    except BaseException as error:
        done.set_exception(error)
