"""The outboxes of clients, and the thread that sends what the coordinator's loop puts into them.

A send goes through shared memory and waits for the server: about 0.1 ms, most of it waiting. On its own
thread it overlaps with the next round. Text that arrives during a send goes out in one response.

Each response costs CPU time here, in Triton, in its front and at the client, which may share processors with
the engines, and it needs Python's lock, as the coordinator does. So each stream rests after a response, the
longer the more streams there are, and text that arrives meanwhile goes out in one response too. A stream's
first text, its end and a failure never wait.
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

from trtspec.serving.triton.agreement import DepartureTurns
from trtspec.serving.triton.responses import Code, Failure, TextChunk

log = logging.getLogger(__name__)

REST_S, LONGEST_REST_S = 0.002, 0.03
"""The rest of a stream after a response, in seconds: for each other stream, and at most (33 a second)."""
SHORTEST_REST_S = 0.0005
"""The rest of a stream alone: shorter than any step of a model, so only responses that cost more than their
rounds become fewer.
"""

_UNSENT = TextChunk(failure=Failure("a response could not be sent", Code.INTERNAL))


class RequestClient(Protocol):
    """The client of one request, as Triton gives it. It is used on the sending thread alone."""

    def send(self, chunk: TextChunk) -> None: ...

    def has_left(self, ask: bool) -> bool:
        """Says whether the client is known to have left. With `ask` it asks Triton too, which takes time."""


class Outbox:
    """Holds the unsent chunks of one client. Any thread may call `put`, one at a time.

    `put` calls `ready` if the outbox is to be sent: while it is awake, or if the chunk has a completion or a
    failure. The outbox is not awake between a send and `wake`. A failure is sent after the waiting text.
    """

    def __init__(self, client: RequestClient, ready: Callable[[Outbox], None]) -> None:
        self._client, self._ready = client, ready
        self._lock = threading.Lock()
        self._waiting: dict[int | None, TextChunk] = {}  # by sequence, the latest last; a failure has none
        self._is_awake, self._is_over = True, False

    def put(self, chunk: TextChunk) -> bool:
        """Adds a chunk. Returns False, and drops it, if the last chunk was put before."""
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
        """Calls `ready` if chunks wait; if not, the next `put` does."""
        with self._lock:
            is_awake = self._is_awake = not self._waiting
        if not is_awake:
            self._ready(self)

    def send(self) -> bool:
        """Sends the waiting chunks, one response for each sequence; returns whether the last was sent."""
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
        """True if a client has not got its last response yet."""
        return bool(self._open)

    def close(self) -> None:
        """Sends all waiting chunks and ends the thread."""
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
                # Another number means that an urgent chunk was sent meanwhile, with a rest after it.
                if self._rests.get(outbox) == number:
                    outbox.wake()
            if time.monotonic() >= next_tick:
                self._check_clients()
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
        rest = max(SHORTEST_REST_S, min(REST_S * (len(self._rests) - 1), LONGEST_REST_S))
        heappush(self._resting, (time.monotonic() + rest, number, outbox))

    def _check_clients(self) -> None:
        """Ends the requests of clients that have left, as far as there is time to ask, and calls `tick`."""
        for outbox, is_asked in self._turns.take(list(self._open)):
            with _logged("a client could not be asked whether it has left"):
                if outbox.has_left(is_asked):
                    on_leave, self._open[outbox] = self._open[outbox], lambda: None
                    on_leave()
        with _logged("the metrics could not be updated"):
            self._tick()


@contextmanager
def _logged(problem: str, *on_error: Callable[[], object]) -> Iterator[None]:
    """Logs any exception and then calls `on_error`: one client must not end the thread that serves all."""
    try:
        yield
    except Exception:
        log.exception(problem)
        for repair in on_error:
            with _logged(problem):
                repair()
