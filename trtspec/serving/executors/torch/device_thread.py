"""The thread that makes the steps of all engines of a device."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol, TypeVar

from trtspec.serving.executor import Response
from trtspec.serving.executors.torch.thread_count import ThreadCount, usable_threads
from trtspec.serving.executors.torch.turn_order import TurnOrder

log = logging.getLogger(__name__)

T = TypeVar("T")
Work = Callable[[], object]
Hear = Callable[[Response], None]


class Stepper(Protocol):
    """An engine, seen as something that has work or not; `longest_draft` is what it verifies at once."""

    longest_draft: int

    @property
    def has_work(self) -> bool: ...

    def step(self) -> None:
        """Raises nothing."""
        ...


class DeviceThread:
    """Steps run back to back, in `Order`, as long as an engine has work, and leave the asyncio loop free.

    What the loop has for the engines goes as one parcel for each of its iterations, so that requests which
    are made together run together; it is read between two steps. What a step says goes to the loop as one
    parcel as well. After a step that ends a request the next waits until the loop has had its say, at most as
    long as the step took: answers lead to new requests, which run with those that wait, and what the loop
    does with them would take a processor from a step that uses them all.

    What an engine multiplies, from its loading on, it multiplies on this thread: each thread that does so
    has helpers of its own, and OpenMP lets them all sleep between two products once they are more than there
    are processors.
    """

    def __init__(self) -> None:
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
        """Before the engine has work."""
        self._engines.append(engine)
        self._order.patience = max(engine.longest_draft for engine in self._engines) or 1

    def leave(self, engine: Stepper) -> None:
        """Returns when no step of the engine runs any more; the thread ends with the last engine."""
        self.call(lambda: self._engines.remove(engine))
        self._end_if_alone()

    def call(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises on the engines' thread, between two steps; waits for it."""
        done: Future[T] = Future()
        self._begin()
        self._flush(partial(_settle, done, work))
        try:
            return done.result()
        except BaseException:
            self._end_if_alone()
            raise

    def post(self, work: Callable[..., object], *arguments: object) -> None:
        """Has something done on the engines' thread, between two steps."""
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
            except Exception as error:  # A listener that raises must not stop the others.
                loop.call_exception_handler({"message": "a listener raised", "exception": error})
        # Behind the tasks that wake up for an answer, and behind those that they wake up in turn.
        loop.call_soon(lambda: loop.call_soon(self._flush, self._echo))

    # On the engines' thread.

    def say(self, hear: Hear, response: Response) -> None:
        """Has `hear` called on the loop, when the step is over."""
        self._said.append((hear, response))

    def _run(self) -> None:
        threads = ThreadCount(usable_threads())
        while not self._is_over:
            has_work = [engine.has_work for engine in self._engines]
            self._read(wait=not any(has_work))
            turn = self._order.next([engine.has_work for engine in self._engines])
            took = 0.0
            if turn is not None:
                start, cpu = time.perf_counter(), time.process_time()
                self._engines[turn].step()
                took = time.perf_counter() - start
                threads.note(took, time.process_time() - cpu)
            if self._said:
                self._send(took)
        threads.reset()

    def _read(self, wait: bool) -> None:
        """All that has come; `wait` for something to come."""
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
            except Exception:  # One request's trouble is not that of the others.
                log.exception("an engine could not take what it was sent")

    def _send(self, took: float) -> None:
        said, self._said = self._said, []
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._deliver, said)
        except RuntimeError:  # The loop is closed, and nobody listens.
            return
        if not any(response.is_final for _, response in said):  # What goes on leads to no request.
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
