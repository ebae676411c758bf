"""A running Triton server, wherever it runs."""

from __future__ import annotations

import re
import shlex
import signal
import time
from pathlib import Path
from typing import Protocol

from trtspec.causes import find_cause
from trtspec.deploy.causes import CAUSES
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.options import DRAIN_S
from trtspec.errors import ServerError, UnavailableError

_STOP_S = DRAIN_S + 5
# So often in a row must the metrics say that nothing runs, since they come late.
_QUIET = 3

# What the model said; Triton writes line ends as two characters, and a trace after the second.
_LOAD_FAILURE = re.compile(
    r"failed to load '[^']*' version \d+: \w+: (?:TritonModelException: )?(.+?)(?:\\n|\"\n)"
)

# Lines of Triton (E1121 …), of TensorRT and of TensorRT-LLM; their warnings tell of what has no effect.
_ERROR = re.compile(r"^(?:E\d{4} |error: |.*\[(?:E|ERROR)\]).*$", re.MULTILINE)


class Process(Protocol):
    """What the server runs as."""

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        ...

    def stop(self, seconds: int) -> None:
        """Tells it to end, and waits for so long."""
        ...


class Server:
    """One that was started, and may not be ready yet."""

    def __init__(self, deployment: Deployment, process: Process) -> None:
        self._deployment, self._process = deployment, process
        self._deadline = time.monotonic() + deployment.start_s

    def is_ready(self) -> bool:
        """Raises `ServerError` when the server has ended, or takes longer than it may."""
        self.check_running()
        if self._deployment.is_ready():
            return True
        if time.monotonic() > self._deadline:
            problem = f"not ready after {self._deployment.start_s:g} s"
            raise ServerError("tritonserver", problem, "give it longer with --timeout")
        return False

    def check_running(self) -> None:
        """Raises `ServerError` when the server has ended by itself."""
        status = self._process.poll()
        if status is None:
            return
        log = self._deployment.log
        said = log.read_text(encoding="utf-8", errors="replace")
        failure = _LOAD_FAILURE.search(said)
        cause = find_cause(CAUSES, failure[1] if failure else "\n".join(_ERROR.findall(said)))
        repair = cause[1] if cause else f"its log is {log}"
        if failure:
            raise ServerError(self._deployment.model_name, f"did not load: {failure[1]}", repair)
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise ServerError("tritonserver", f"{how}: {cause[0]}" if cause else how, repair)

    def stop(self) -> None:
        """Tells the server to end when the requests in flight have, and waits; for ever it does not.

        Triton itself waits for a request, but takes in no others meanwhile, which every round is in the bls
        layout.
        """
        quiet, deadline = 0, time.monotonic() + DRAIN_S
        while quiet < _QUIET and time.monotonic() < deadline and self._process.poll() is None:
            quiet = quiet + 1 if self._deployment.is_idle() else 0
            time.sleep(0.05)
        self._process.stop(_STOP_S)


def check_path(path: Path) -> None:
    """The Python backend starts its processes with these paths, unquoted, in a line for the shell."""
    if shlex.quote(str(path)) != str(path):
        repair = "have the build, and TRTSPEC_CACHE, in folders with plain names"
        raise UnavailableError(path, "Triton cannot serve from a path with special characters", repair)


def last_lines(log: Path, count: int = 12) -> list[str]:
    """The end of a log, without Triton's tables."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]
