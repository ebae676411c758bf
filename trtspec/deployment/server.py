"""Defines a running server, on this machine or in a container."""

from __future__ import annotations

import time
from typing import Protocol

from trtspec.base.causes import DRIVER, EXCLUSIVE, Cause, find_cause, gpu_memory, signal_name
from trtspec.base.errors import ServerError
from trtspec.base.tail import last_bytes
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.logs import KEPT

GPU_CAUSES = (
    gpu_memory(
        "end other programs on the GPU (nvidia-smi), or lower engine.max_batch_size or engine.max_seq_len"
    ),
    DRIVER,
    EXCLUSIVE,
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
        return last_bytes(self._deployment.log, KEPT, self._log_begin)


def how_ended(status: int) -> str:
    """Returns an exit status, negative for a signal, in words."""
    return f"was killed by {signal_name(-status)}" if status < 0 else f"ended with status {status}"
