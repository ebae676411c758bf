"""The device thread, which runs the steps of all engines on a device."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from trtspec.serving.executor import Response
from trtspec.serving.executors.torch.thread_count import ThreadCount, usable_threads


class TurnOrder:
    """Decides which engine makes the next step. The draft engine comes before the target.

    The first engine with work makes it, so that no verification starts while drafts are proposed:
    verifications wait for one another and run as one batch. After `patience` consecutive steps of the first
    engine, the next one with work makes a step. With the longest draft as patience every running draft is
    finished before the target goes on, which keeps batches together, and arriving requests cannot delay the
    target any longer.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._passed = 0

    def next(self, has_work: Sequence[bool]) -> int | None:
        """Returns the index of the engine that makes the next step; None if none has work."""
        ready = [index for index, has in enumerate(has_work) if has]
        if len(ready) > 1 and self._passed < self.patience:
            self._passed += 1
            return ready[0]
        self._passed = 0
        return ready[:2][-1] if ready else None


log = logging.getLogger(__name__)

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
        self._order = TurnOrder(patience=1)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._outgoing: list[Work] = []
        self._mail: SimpleQueue[list[Work]] = SimpleQueue()
        self._said: list[tuple[Hear, Response]] = []
        self._awaits_echo = self._is_over = False

    # On the loop's thread.

    def join(self, engine: Stepper) -> None:
        """Adds an engine without work. Engines that verify no drafts come first in `TurnOrder`."""
        self._engines = sorted([*self._engines, engine], key=lambda engine: engine.longest_draft > 0)
        self._order.patience = max(engine.longest_draft for engine in self._engines) or 1

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
