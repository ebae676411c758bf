"""Defines a running server, on this machine or in a container, its log, and how it runs in the foreground."""

from __future__ import annotations

import ctypes
import math
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol

from trtspec.base.causes import DRIVER, EXCLUSIVE, MPI, Cause, find_cause, gpu_memory, signal_name
from trtspec.base.errors import ServerError, StuckError
from trtspec.base.tail import Tail, last_bytes
from trtspec.deployment.deployment import Deployment

GPU_CAUSES = (
    gpu_memory(
        "end other programs on the GPU (nvidia-smi), or lower engine.max_batch_size or engine.max_seq_len"
    ),
    DRIVER,
    EXCLUSIVE,
    MPI,
)
"""Messages of any server that tell of trouble with its GPU."""

CAUSES = (
    *GPU_CAUSES,
    Cause(r"unrecognized arguments?: (.+)", "does not know {0}", "install the release of the build"),
    Cause(
        r"pip install (arctic-inference==[\d.]+)",
        "its Python lacks {0}, which suffix decoding needs",
        "install it there, or write another speculation.method",
    ),
)
"""Messages of another engine's server, or PyTorch in it, that tell why it ended."""

_NO_MODULE = Cause(
    r"No module named '?([\w.]+)",
    "its Python has no module {0}",
    "name the Python of its own environment: --python",
)

TAIL_BYTES = 4 << 20
"""So many bytes at the end of a log stay, to say why a server has ended."""

# The last lines come from this many bytes.
_LAST = 1 << 16
_LOOK_S = 0.2
_STEP = 1 << 20
# linux/falloc.h
_KEEP_SIZE, _PUNCH_HOLE = 1, 2

# Triton's own ports: those of HTTP and metrics are behind the front, so they differ from the clients' ports.
# And its tables, whose borders say nothing alone.
_UNTOLD = re.compile(r".*Started \w+ ?Service at |[+|]|\W*$")
_FIRST_S, _LONGEST_S = 1.0, 30.0
_STABLE_S = 60.0
# The largest number of consecutive starts without a ready server.
_MOST = 5
_MOST_STUCK = 3


class ServerProcess(Protocol):
    """The process of a server, on this machine or in a container."""

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        ...

    def stop(self, seconds: float) -> None:
        """Tells it to stop, and waits this many seconds for its end."""
        ...


class RunningServer:
    """A server that was started and may not be ready yet; it has no process in front."""

    def __init__(self, deployment: Deployment, process: ServerProcess) -> None:
        self._deployment, self._process = deployment, process
        self._begin = time.monotonic()
        # Earlier servers may have written what comes before.
        self._log_begin = deployment.log.stat().st_size if deployment.log.exists() else 0

    def is_ready(self) -> bool:
        """Says whether the server is ready; raises `ServerError` when it has ended or takes too long."""
        self.check_running()
        if self._deployment.is_ready():
            return True
        if time.monotonic() > self._begin + self._deployment.start_s:
            problem = f"not ready after {self._deployment.start_s:g} s"
            raise ServerError(self._deployment.kind.subject, problem, "set a longer --timeout")
        return False

    def check_running(self) -> None:
        """Raises `ServerError` when the server has ended by itself, or was ready and hangs."""
        status = self._process.poll()
        if status is None:
            self._check_answers()
            return
        self.refuse("ended")
        raise self._why(status)

    def refuse(self, state: str) -> None:
        """Refuses requests from now on; `state` tells clients why, such as "restarting".

        Without a process in front, the machine itself refuses connections to an ended server.
        """

    def stop(self) -> None:
        """Stops the server when its requests in flight have ended, or when their grace period is over."""
        self._process.stop(self._deployment.grace_s + self._deployment.kind.stop_s)

    def _check_answers(self) -> None:
        """Raises `ServerError` if a ready server hangs; another engine's server is not checked."""

    def _why(self, status: int) -> ServerError:
        """Returns why the server has ended."""
        how, cause = how_ended(status), find_cause((*CAUSES, _NO_MODULE), self._said())
        return self._error(self._deployment.kind.subject, how, cause)

    def _error(self, subject: str, how: str, cause: tuple[str, str] | None) -> ServerError:
        if cause is None:
            return ServerError(subject, how, self._log)
        return ServerError(subject, f"{how}: {cause[0]}", cause[1])

    @property
    def _log(self) -> str:
        return f"its log is {self._deployment.log}"

    def _said(self) -> str:
        return last_bytes(self._deployment.log, TAIL_BYTES, self._log_begin)


def how_ended(status: int) -> str:
    """Returns an exit status, negative for a signal, in words."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def begin_log(log: Path) -> None:
    """Starts an empty log; keeps the earlier deployment's log beside it, since it may explain a crash."""
    if log.exists():
        log.replace(log.with_suffix(".log.1"))
    log.touch()


def last_lines(log: Path, count: int = 12) -> list[str]:
    """Returns the end of a log, without Triton's tables."""
    lines = last_bytes(log, _LAST).splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]


class LogFollower:
    """A context in which a thread calls `say` with each line of the logs and its source.

    `logs` names the files, which need not exist yet. Lines that were passed on are freed on the disk: a pod
    has no room for a log that grows for ever. The files keep their size, with zeros at the beginning.
    """

    def __init__(self, logs: Mapping[str, Path], say: Callable[[str, str], None]) -> None:
        self._tails = {name: Tail(file) for name, file in logs.items()}
        self._logs, self._freed, self._say = logs, dict.fromkeys(logs, 0), say
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="trtspec-logs", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(_LOOK_S):
            for name, tail in self._tails.items():
                self._pass_on(name, tail.lines())
                if tail.offset - TAIL_BYTES - self._freed[name] > _STEP:
                    self._freed[name] = tail.offset - TAIL_BYTES
                    free(self._logs[name], self._freed[name])
        for name, tail in self._tails.items():
            self._pass_on(name, tail.rest())

    def _pass_on(self, name: str, lines: list[str]) -> None:
        for line in lines:
            self._say(name, line)


def free(file: Path, end: int) -> None:
    """Frees the blocks of a file up to `end`, which then reads as zeros; if the file system cannot do that,
    they stay."""
    libc = ctypes.CDLL(None)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    descriptor = os.open(file, os.O_WRONLY)
    try:
        libc.fallocate(descriptor, _PUNCH_HOLE | _KEEP_SIZE, 0, end)
    finally:
        os.close(descriptor)


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
    """Is notified of the server's progress by `serve_in_foreground`."""

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


def serve_in_foreground(
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
