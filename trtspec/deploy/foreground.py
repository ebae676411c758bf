"""A server in the foreground: started, watched, started again, stopped."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from trtspec.deploy.restarts import Restarts
from trtspec.deploy.server import Server, last_lines
from trtspec.errors import ServerError
from trtspec.tail import Tail


class Interrupted(Exception):
    """Told to stop before the server was ready."""


class Listener(Protocol):
    """Hears what becomes of the server."""

    def starting(self) -> AbstractContextManager[Callable[[str], None]]:
        """Entered while it starts; what it yields hears what it does."""
        ...

    def ready(self) -> None: ...

    def said(self, line: str) -> None:
        """A line of its log."""
        ...

    def failed(self, error: ServerError, delay: float) -> None:
        """It has ended by itself, and is started again after so many seconds."""
        ...

    def stopping(self) -> None: ...


def serve(
    serving: AbstractContextManager[Callable[[], Server]],
    log: Path,
    restarts: Restarts,
    listener: Listener,
    *,
    leave: bool,
) -> None:
    """Serves until Ctrl-C or SIGTERM, or until it is ready where it is to be left running.

    Raises `Interrupted` when it was told to stop before that, and the last error of a server that is not
    started again.
    """
    with _told_to_stop() as stop, serving as start:
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
def _told_to_stop() -> Iterator[threading.Event]:
    """An event that Ctrl-C or SIGTERM sets; either, a second time, is a KeyboardInterrupt."""
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


def _wait_until_ready(server: Server, tail: Tail, stop: threading.Event, listener: Listener) -> None:
    with listener.starting() as does:
        while not server.is_ready():
            if stop.wait(0.1):
                raise Interrupted
            if lines := tail.lines():
                does(lines[-1].partition("] ")[2].strip('"')[:60])
    tail.lines()
