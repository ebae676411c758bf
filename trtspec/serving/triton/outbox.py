"""The outboxes of clients, and the thread that sends what the coordinator's loop puts there.

A send goes through shared memory and waits for the server: about 0.1 ms, of which most is waiting. On a
thread of its own it overlaps with the next round; text that arrives during a send goes out together.

Each response costs processor time here, in Triton, in what stands before it and at the client, which steps on
the same processors lack, and Python's lock, which the coordinator needs. So with many streams each one rests
behind a response, and what comes meanwhile goes out together too. A stream's first text, its end and a
failure never wait.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappop, heappush
from itertools import count
from typing import Protocol

from trtspec.serving.triton.departures import DepartureTurns
from trtspec.serving.triton.responses import Code, Failure, TextChunk

log = logging.getLogger(__name__)

REST_S, LONGEST_REST_S = 0.002, 0.03
"""How long a stream rests behind a response, for each other stream, and at most: 33 responses a second."""

_UNSENT = TextChunk(failure=Failure("a response could not be sent", Code.INTERNAL))


class RequestClient(Protocol):
    """The client of one request, as Triton gives it; used on the sending thread alone."""

    def send(self, chunk: TextChunk) -> None: ...

    def has_left(self, ask: bool) -> bool:
        """Says whether it is known to have left; with `ask`, Triton is asked too, which takes its time."""
        ...


class Outbox:
    """Holds what is still to be sent to one client; `put` may be called on any thread, one at a time.

    `ready` is told when something is to be sent: at once while the outbox is awake, which it is not between a
    send and `wake`, and whenever a completion or failure comes. A failure is sent behind the text that waits.
    """

    def __init__(self, client: RequestClient, ready: Callable[[Outbox], None]) -> None:
        self._client, self._ready = client, ready
        self._lock = threading.Lock()
        self._waiting: dict[int | None, TextChunk] = {}  # by sequence, the latest last; a failure has none
        self._is_awake, self._is_over = True, False

    def put(self, chunk: TextChunk) -> bool:
        """Returns whether it is still to be sent: nothing is behind the last one."""
        with self._lock:
            if self._is_over:
                return False
            self._is_over = chunk.is_last
            sequence = None if chunk.failure else chunk.sequence_index
            before = self._waiting.pop(sequence, None)
            self._waiting[sequence] = before.followed_by(chunk) if before else chunk
            is_urgent = self._is_awake or chunk.completion is not None or chunk.failure is not None
            self._is_awake = False
        if is_urgent:
            self._ready(self)
        return True

    def wake(self) -> None:
        """Has what waits sent, and otherwise the next chunk at once."""
        with self._lock:
            is_awake = self._is_awake = not self._waiting
        if not is_awake:
            self._ready(self)

    def send(self) -> bool:
        """Sends what waits as one response for each sequence; returns whether the last was among them."""
        with self._lock:
            waiting, self._waiting, self._is_awake = list(self._waiting.values()), {}, False
        for chunk in waiting:
            self._client.send(chunk)
        return bool(waiting) and waiting[-1].is_last

    def fail(self) -> None:
        """Ends the request of a client whose response could not be sent."""
        self._client.send(_UNSENT)

    def has_left(self, ask: bool) -> bool:
        return self._client.has_left(ask)


class Sender:
    """Runs the sending thread, on which `tick` is called every `tick_s` seconds, busy or not."""

    def __init__(self, tick: Callable[[], None], tick_s: float) -> None:
        self._tick, self._tick_s = tick, tick_s
        self._ready: queue.SimpleQueue[Outbox | None] = queue.SimpleQueue()
        self._open: dict[Outbox, Callable[[], object]] = {}
        self._turns: DepartureTurns[Outbox] = DepartureTurns()
        self._resting: list[tuple[float, int, Outbox]] = []
        self._numbers = count()
        self._rests: dict[Outbox, int] = {}  # of streams that have had text, the number of the latest rest
        self._thread = threading.Thread(target=self._run, name="trtspec-sender", daemon=True)
        self._thread.start()

    def open(self, client: RequestClient, on_leave: Callable[[], object]) -> Outbox:
        """Returns a new outbox; `on_leave` is called on the sending thread when the client leaves."""
        outbox = Outbox(client, self._ready.put)
        self._open[outbox] = on_leave
        return outbox

    @property
    def has_clients(self) -> bool:
        """Says whether a client has not had its last response yet."""
        return bool(self._open)

    def close(self) -> None:
        """Sends what waits and ends the thread."""
        self._ready.put(None)
        self._thread.join()

    def _run(self) -> None:
        next_tick = time.monotonic() + self._tick_s
        while True:
            until = min(next_tick, self._resting[0][0]) if self._resting else next_tick
            try:
                outbox = self._ready.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if outbox is None:
                    break
                self._send(outbox)
            while self._resting and self._resting[0][0] <= time.monotonic():
                _, number, outbox = heappop(self._resting)
                # An end was sent meanwhile, and the stream rests behind that.
                if self._rests.get(outbox) == number:
                    outbox.wake()
            if time.monotonic() >= next_tick:
                self._look_around()
                next_tick = time.monotonic() + self._tick_s
        for outbox in list(self._open):
            self._send(outbox)

    def _send(self, outbox: Outbox) -> None:
        if outbox not in self._open:
            return
        is_over = True
        with _logged("a response could not be sent", self._open[outbox], outbox.fail):
            is_over = outbox.send()
        if is_over:
            del self._open[outbox]
            self._rests.pop(outbox, None)
            return
        self._rests[outbox] = number = next(self._numbers)
        rest = min(REST_S * (len(self._rests) - 1), LONGEST_REST_S)
        heappush(self._resting, (time.monotonic() + rest, number, outbox))

    def _look_around(self) -> None:
        """Ends what nobody waits for; Triton is asked in turn, as far as the time goes."""
        for outbox, is_asked in self._turns.take(list(self._open)):
            with _logged("a client could not be asked whether it has left"):
                if outbox.has_left(is_asked):
                    on_leave, self._open[outbox] = self._open[outbox], _nothing
                    on_leave()
        with _logged("the metrics could not be updated"):
            self._tick()


@contextmanager
def _logged(problem: str, *on_error: Callable[[], object]) -> Iterator[None]:
    """Logs any exception, since one client or one metric must not end the thread that serves the others."""
    try:
        yield
    except Exception:
        log.exception(problem)
        for repair in on_error:
            with _logged(problem):
                repair()


def _nothing() -> None:
    """Does nothing; it replaces the `on_leave` of a client that has left."""
