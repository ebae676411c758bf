"""The outboxes of clients, and the thread that sends what the coordinator's loop puts there.

A send goes through shared memory and waits for the server: about 0.1 ms, of which most is waiting. On a
thread of its own it overlaps with the next round; text that arrives during a send goes out together.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from trtspec.serving.triton.responses import TextChunk

log = logging.getLogger(__name__)


class Client(Protocol):
    """The client of one request, as Triton gives it; used on the sending thread alone."""

    def send(self, chunk: TextChunk) -> None: ...

    def has_left(self) -> bool: ...


class Outbox:
    """Holds what is still to be sent to one client; `put` may be called on any thread, one at a time."""

    def __init__(self, client: Client, ready: Callable[[Outbox], None]) -> None:
        self._client, self._ready = client, ready
        self._lock = threading.Lock()
        self._waiting: dict[int, TextChunk] = {}  # by sequence, the one with the latest chunk last

    def put(self, chunk: TextChunk) -> None:
        with self._lock:
            is_idle = not self._waiting
            before = self._waiting.pop(chunk.sequence_index, None)
            self._waiting[chunk.sequence_index] = before.followed_by(chunk) if before else chunk
        if is_idle:
            self._ready(self)

    def send(self) -> bool:
        """Sends what waits as one response for each sequence; returns whether the last was among them."""
        with self._lock:
            waiting, self._waiting = list(self._waiting.values()), {}
        assert waiting, "an outbox is ready only when something waits in it"
        for chunk in waiting:
            self._client.send(chunk)
        return waiting[-1].is_last

    def has_left(self) -> bool:
        return self._client.has_left()


class Sender:
    """Runs the sending thread, on which `tick` is called every `tick_s` seconds, busy or not."""

    def __init__(self, tick: Callable[[], None], tick_s: float) -> None:
        self._tick, self._tick_s = tick, tick_s
        self._ready: queue.SimpleQueue[Outbox | None] = queue.SimpleQueue()
        self._open: dict[Outbox, Callable[[], object]] = {}
        self._thread = threading.Thread(target=self._run, name="trtspec-sender", daemon=True)
        self._thread.start()

    def open(self, client: Client, on_leave: Callable[[], object]) -> Outbox:
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
            try:
                outbox = self._ready.get(timeout=max(0.0, next_tick - time.monotonic()))
            except queue.Empty:
                pass
            else:
                if outbox is None:
                    return
                self._send(outbox)
            if time.monotonic() >= next_tick:
                self._look_around()
                next_tick = time.monotonic() + self._tick_s

    def _send(self, outbox: Outbox) -> None:
        if outbox not in self._open:
            return
        is_over = True
        with _logged("a response could not be sent", self._open[outbox]):
            is_over = outbox.send()
        if is_over:
            del self._open[outbox]

    def _look_around(self) -> None:
        for outbox, on_leave in list(self._open.items()):
            with _logged("a client could not be asked whether it has left"):
                if outbox.has_left():
                    self._open[outbox] = _nothing
                    on_leave()
        with _logged("the metrics could not be updated"):
            self._tick()


@contextmanager
def _logged(problem: str, on_error: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Logs any exception, since one client or one metric must not end the thread that serves the others."""
    try:
        yield
    except Exception:
        log.exception(problem)
        on_error()


def _nothing() -> None:
    """Does nothing; it replaces the `on_leave` of a client that has left."""
