"""Runs a server in the foreground: starts, watches, restarts and stops it."""

from __future__ import annotations

import math
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from trtspec.base.errors import ServerError, StuckError
from trtspec.base.tail import Tail
from trtspec.deployment.server import RunningServer, last_lines

# Triton's own ports: those of HTTP and metrics are behind the front, so they differ from the clients' ports.
# And its tables, whose borders say nothing alone.
_UNTOLD = re.compile(r".*Started \w+ ?Service at |[+|]|\W*$")
_FIRST_S, _LONGEST_S = 1.0, 30.0
_STABLE_S = 60.0
# The largest number of consecutive starts without a ready server.
_MOST = 5
_MOST_STUCK = 3


class Interrupted(Exception):
    """Raised when the user stops a server before it is ready."""


class Restarts:
    """Decides when a deployment restarts; a start that hangs is repeated even without `is_wanted`."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._delay, self._in_vain, self._stuck = _FIRST_S, 0, 0

    def delay(self, error: ServerError, ready_s: float) -> float | None:
        """Returns the seconds to wait before the next start; None for no further start.

        `ready_s` is how many seconds the server was ready, below 0 if it never was.
        """
        if isinstance(error, StuckError):
            self._stuck += 1
            return 0.0 if self._stuck <= _MOST_STUCK else None
        self._stuck = 0
        self._in_vain = self._in_vain + 1 if ready_s < 0 else 0
        if not self._is_wanted or self._in_vain >= _MOST:
            return None
        if ready_s >= _STABLE_S:
            self._delay = _FIRST_S
        delay, self._delay = self._delay, min(2 * self._delay, _LONGEST_S)
        return delay


class ServerListener(Protocol):
    """Is notified of the server's progress by `serve`."""

    def starting(self) -> AbstractContextManager[Callable[[str], None]]:
        """Returns a context to enter while the server starts.

        It yields a function that is called all the time with what the server does; "" if it says nothing.
        """
        ...

    def ready(self) -> None: ...

    def said(self, line: str) -> None:
        """Called for a line of the server's log."""
        ...

    def failed(self, error: ServerError, delay: float) -> None:
        """Called when the server has ended unexpectedly, and restarts after `delay` seconds."""
        ...

    def stopping(self) -> None: ...


def serve(
    serving: AbstractContextManager[Callable[[], RunningServer]],
    log: Path,
    restarts: Restarts,
    listener: ServerListener,
    *,
    leave: bool,
) -> None:
    """Serves until Ctrl-C or SIGTERM; with `leave`, only until the server is ready.

    `serving` yields a function that starts a server. Raises `Interrupted` if it is stopped before the server
    is ready, and the last `ServerError` if the server is not restarted.
    """
    with _stop_signals() as stop, serving as start:
        tail = Tail(log)
        while True:
            server, ready_at = start(), math.inf
            try:
                _wait_until_ready(server, tail, stop, listener)
                ready_at = time.monotonic()
                listener.ready()
                if leave:
                    return
                while not stop.wait(0.2):
                    for line in tail.lines():
                        listener.said(line)
                    server.check_running()
                break
            except ServerError as error:
                delay = restarts.delay(error, ready_s=time.monotonic() - ready_at)
                for line in last_lines(log):
                    listener.said(line)
                if delay is None:
                    raise
                server.refuse("restarting")
                listener.failed(error, delay)
                if stop.wait(delay):
                    raise
        listener.stopping()
        server.stop()


@contextmanager
def _stop_signals() -> Iterator[threading.Event]:
    """Yields an event that Ctrl-C or SIGTERM sets; the second signal raises KeyboardInterrupt."""
    stop = threading.Event()

    def tell(*_: object) -> None:
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()

    previous = {number: signal.signal(number, tell) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait_until_ready(
    server: RunningServer, tail: Tail, stop: threading.Event, listener: ServerListener
) -> None:
    does = ""
    with listener.starting() as tell:
        while not server.is_ready():
            if stop.wait(0.1):
                raise Interrupted
            if lines := [line for line in tail.lines() if not _UNTOLD.match(line)]:
                # The message follows the time and the place in the code, if the line begins with them.
                does = (lines[-1].partition("] ")[2] or lines[-1]).strip('" \t')[:60]
            tell(does)
    tail.lines()
