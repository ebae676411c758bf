"""A running Triton server, wherever it runs."""

from __future__ import annotations

import math
import re
import shlex
import signal
import time
from pathlib import Path
from typing import Protocol

from trtspec.base.causes import find_cause, signal_name
from trtspec.base.errors import ServerError, StuckError, UnavailableError
from trtspec.base.tail import last_bytes
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.following import KEPT
from trtspec.gateway.ports import Ports
from trtspec.gateway.triton.causes import CAUSES

# The time beyond the grace in which requests that still run are cancelled, and Triton ends.
_STOP_S = 5.0
# So often a server that was ready is asked whether it lives, and so many answers in a row it may owe: every
# client waits for a Triton that hangs, whose process runs, and for a model whose process has died unnoticed.
_ASK_S = 5.0
_MOST_MISSED = 6
# How often in a row the metrics must say that nothing runs, since they come late.
_QUIET = 3

# Why a model did not load, in its own words; Triton writes the end of a line as two characters, \ and n.
_LOAD_FAILURE = re.compile(
    r"failed to load '[^']*' version \d+: \w+: (?:TritonModelException: )?(.+?)(?:\\n|\"\n)"
)

# What the watchdog of a process says; those of processes that ended with the server follow it.
_WATCHDOG = re.compile(r"^trtspec: (\S+) (.+), so this server ends$", re.MULTILINE)

# Errors of Triton (E1121 …), of TensorRT and of TensorRT-LLM; their warnings are about what does no harm.
_ERROR = re.compile(r"^(?:E\d{4} |error: |.*\[(?:E|ERROR)\]).*$", re.MULTILINE)


# A race of Triton's Python backend with its own processes (triton-inference-server/server#8882).
_ABORTED = "boost::interprocess::lock_exception"

# Behind a front its ports are free ones that were chosen for this start.
_PORT_TAKEN = re.compile(r"failed to start \w+ service: .*already in use")

# What is no line of Triton's own log, but said by one of its processes.
_PLAIN = re.compile(r"^(?![IWEF]\d{4} ).+$", re.MULTILINE)


class Process(Protocol):
    """The process of a server, on this machine or in a container."""

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        ...

    def is_stuck(self) -> bool:
        """Says whether its start has got stuck, so that waiting is of no use."""
        ...

    def lost(self) -> int | None:
        """Returns the exit status of a model's process that has ended unnoticed; None if none has.

        Triton waits for it as if it were still loading, or at work.
        """
        ...

    def drain(self) -> None:
        """Tells the model to take in nothing more, and to cancel what still runs after the grace."""
        ...

    def stop(self, seconds: float) -> None:
        """Tells it to end, and waits so many seconds for that."""
        ...


class Door(Protocol):
    """Lets requests in, or refuses them; `Front` is one."""

    def open(self, ports: Ports) -> None: ...

    def shut(self, state: str, *, is_alive: bool = True) -> None: ...


class TritonServer:
    """A server that was started and may not be ready yet; requests come in through `door` if there is one."""

    def __init__(self, deployment: Deployment, process: Process, door: Door | None = None) -> None:
        self._deployment, self._process, self._door = deployment, process, door
        self._begin = time.monotonic()
        self._next_ask, self._missed = math.inf, 0
        self._pulse: list[str] = []
        # Earlier servers may have written what comes before.
        self._log_begin = deployment.log.stat().st_size if deployment.log.exists() else 0

    def is_ready(self) -> bool:
        """Says whether the server is ready, and opens the door when it is.

        Raises `ServerError` when the server has ended or takes longer than `start_s`, and `StuckError` when
        its start has got stuck, or Triton has ended it for a reason that another start does not have.
        """
        if self._process.poll() == -signal.SIGABRT and _ABORTED in self._said():
            raise StuckError("tritonserver", "has ended while it began its processes", "start it again")
        self.check_running()
        if self._deployment.is_ready():
            if self._door:
                self._door.open(self._deployment.ports)
            self._next_ask = time.monotonic() + _ASK_S
            return True
        if self._process.is_stuck():
            raise StuckError("tritonserver", "waits for a process that does not begin", "start it again")
        if (status := self._process.lost()) is not None:
            self._check_loaded(self._said())
            how = f"a model's process {how_ended(status)} before it began"
            cause = find_cause(CAUSES, "\n".join(_PLAIN.findall(self._said())))
            raise self._error("tritonserver", how, cause)
        if time.monotonic() > self._begin + self._deployment.start_s:
            problem = f"not ready after {self._deployment.start_s:g} s"
            raise ServerError("tritonserver", problem, "give it longer with --timeout")
        return False

    def check_running(self) -> None:
        """Raises `ServerError` when the server has ended by itself, or was ready and hangs.

        Raises `StuckError` as `is_ready` does.
        """
        status = self._process.poll()
        if status is None:
            self._check_answers()
            return
        if self._door:
            self._door.shut("ended", is_alive=False)
        said = self._said()
        self._check_loaded(said)
        if _PORT_TAKEN.search(said):
            raise StuckError("tritonserver", "another program has taken its port", "start it again")
        cause = find_cause(CAUSES, "\n".join(_ERROR.findall(said)))
        if deaths := _WATCHDOG.findall(said):
            model, how = deaths[0]
            raise self._error(model, how, cause)
        raise self._error("tritonserver", how_ended(status), cause)

    def refuse(self, state: str) -> None:
        """Refuses requests from now on; `state` tells clients why: "restarting" and the like."""
        if self._door:
            self._door.shut(state, is_alive=False)

    def stop(self) -> None:
        """Ends the server when its requests in flight have ended, or when their grace is over.

        The door is shut, the model takes in nothing more and the server says that it is not ready, all before
        Triton is told to end: from then on Triton waits for the requests that run, but refuses new ones, and
        in the bls layout every round is a new one.
        """
        if self._door:
            self._door.shut("stopping")
        self._process.drain()
        self._deployment.make_unready()
        quiet, deadline = 0, time.monotonic() + self._deployment.grace_s + 1
        while quiet < _QUIET and time.monotonic() < deadline and self._process.poll() is None:
            quiet = quiet + 1 if self._deployment.is_idle() else 0
            time.sleep(0.05)
        self._process.stop(self._deployment.grace_s + _STOP_S)
        self._deployment.clean_up()

    def _check_answers(self) -> None:
        if time.monotonic() < self._next_ask:
            return
        status, silent = self._process.lost(), self._silent()
        self._next_ask = time.monotonic() + _ASK_S
        self._missed = self._missed + 1 if silent else 0
        if status is not None:
            problem = "tritonserver", f"a model's process {how_ended(status)}"
        elif silent and self._missed == _MOST_MISSED:
            problem = silent, f"has not answered {_MOST_MISSED} times in a row"
        else:
            return
        if self._door:
            self._door.shut("ended", is_alive=False)
        raise self._error(*problem, None)

    def _silent(self) -> str | None:
        """Returns the name of what does not answer, Triton or the model behind it; None if both do."""
        if not self._deployment.answers():
            return "tritonserver"
        pulse, before = self._deployment.pulse(), self._pulse
        self._pulse = pulse or before
        return self._deployment.model_name if before and pulse in ([], before) else None

    def _check_loaded(self, said: str) -> None:
        """Raises `ServerError` when a model did not load."""
        if failure := _LOAD_FAILURE.search(said):
            cause = find_cause(CAUSES, failure[1])
            repair = cause[1] if cause else self._log
            raise ServerError(self._deployment.model_name, f"did not load: {failure[1]}", repair)

    def _error(self, subject: str, how: str, cause: tuple[str, str] | None) -> ServerError:
        if cause is None:
            return ServerError(subject, how, self._log)
        return ServerError(subject, f"{how}: {cause[0]}", cause[1])

    @property
    def _log(self) -> str:
        return f"its log is {self._deployment.log}"

    def _said(self) -> str:
        return last_bytes(self._deployment.log, KEPT, self._log_begin)


def how_ended(status: int) -> str:
    """Returns an exit status, negative for a signal, in words."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"


def check_path(path: Path) -> None:
    """Raises UnavailableError for a path with characters that mean something to a shell.

    Triton's Python backend starts its processes with these paths, unquoted, in a line for the shell.
    """
    if shlex.quote(str(path)) != str(path):
        repair = "have the build, and TRTSPEC_CACHE, in folders with plain names"
        raise UnavailableError(path, "Triton cannot serve from a path with special characters", repair)
