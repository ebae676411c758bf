"""Asks a running Triton and the processes of its models, makes it unready, and finds out why it has ended."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from trtspec.base.causes import Cause, find_cause
from trtspec.base.errors import ServerError, StuckError
from trtspec.base.extras import how_to_install
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server import GPU_CAUSES, RunningServer, ServerProcess, how_ended
from trtspec.deployment.triton.launch import KEY_HEADER
from trtspec.gateway.ports import Ports
from trtspec.serving.metrics import COUNTED
from trtspec.serving.triton.watching import stat

UNREADY = "trtspec_is_stopping"
"""The name of a model that cannot be loaded, by which the server is made unready."""

# So often a server that was ready is asked whether it lives, and so many answers in a row it may owe: every
# client waits for a Triton that hangs, whose process runs, and for a model whose process has died unnoticed.
_ASK_S = 5.0
_MOST_MISSED = 6
# How often in a row the metrics must say that nothing runs, since they come late.
_QUIET = 3

_RUNNING = re.compile(r"^trtspec:num_requests_running\{.*\} (\S+)$", re.MULTILINE)
_COUNTED = re.compile(rf"^{COUNTED}\{{.*\}} (\S+)$", re.MULTILINE)

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

# From issue threads of TensorRT-LLM and its Triton backend.
_CAUSES = (
    Cause(
        r"incompatible device, expecting compute ([\d.]+) got compute ([\d.]+)",
        "an engine was built for compute capability {0}, but this GPU has {1}",
        "serve it on the GPU of its recipe, or build it again on this one",
    ),
    Cause(
        r"Version tag does not match|[Ss]erialization [Vv]ersion|plan file .* different version of TensorRT",
        "an engine was built by another version of TensorRT",
        "build and serve in the same image: trtspec build --container, trtspec deploy --container",
    ),
    Cause(r"No module named 'torch'", "the engines' Python has no PyTorch", how_to_install("torch")),
    *GPU_CAUSES,
    Cause(
        r"triton_python_backend_stub: error while loading shared libraries: ([^\s:]+)",
        "Triton's Python backend lacks {0}",
        "install it, or serve in NVIDIA's image: trtspec deploy --container",
    ),
    Cause(
        r"unable to find backend library for backend 'tensorrtllm'|libtriton_tensorrtllm.so",
        "this Triton has no TensorRT-LLM backend",
        "serve it in NVIDIA's image: trtspec deploy --container",
    ),
)

# A model's process begins with Python and the model's own modules; engines are loaded later.
_BEGINNING_S = 25.0
# Triton sees the end of a process that it has heard of within this time.
_SEEN_S = 1.0
_STUB = b"triton_python_backend_stub"
_NAME = _STUB[:15]  # as the kernel cuts it, TASK_COMM_LEN


class RequestGate(Protocol):
    """Lets requests in, or refuses them; `Front` is one."""

    def open(self, ports: Ports) -> None: ...

    def shut(self, state: str, *, is_alive: bool = True) -> None: ...


class TritonServer(RunningServer):
    """A Triton that was started; requests come in through the `gates`.

    `drain` tells the model to take in nothing more, and to cancel what still runs after the grace. `stubs`
    are the processes of its models, which can be seen on this machine alone.
    """

    def __init__(
        self,
        deployment: Deployment,
        process: ServerProcess,
        drain: Callable[[], object],
        *gates: RequestGate,
        stubs: Stubs | None = None,
    ) -> None:
        super().__init__(deployment, process)
        self._drain, self._gates, self._stubs = drain, gates, stubs
        self._next_ask, self._missed = math.inf, 0
        self._pulse: list[str] = []

    def is_ready(self) -> bool:
        """Says whether the server is ready, and opens the gates when it is.

        Raises `ServerError` when the server has ended or takes too long, and `StuckError` when its start has
        got stuck, or Triton has ended it for a reason that another start does not have.
        """
        if self._process.poll() == -signal.SIGABRT and _ABORTED in self._said():
            raise StuckError("tritonserver", "ended while it started its processes", "start it again")
        if super().is_ready():
            for gate in self._gates:
                gate.open(self._deployment.ports)
            self._next_ask = time.monotonic() + _ASK_S
            return True
        if self._stubs and self._stubs.is_stuck():
            raise StuckError("tritonserver", "waits for a process that does not start", "start it again")
        if (status := self._lost()) is not None:
            self._check_loaded()
            how = f"a model's process {how_ended(status)} before it started"
            cause = find_cause(_CAUSES, "\n".join(_PLAIN.findall(self._said())))
            raise self._error("tritonserver", how, cause)
        return False

    def refuse(self, state: str) -> None:
        for gate in self._gates:
            gate.shut(state, is_alive=False)

    def stop(self) -> None:
        """Ends the server when its requests in flight have ended, or when their grace is over.

        The gates are shut, the model takes in nothing more and the server says that it is not ready, all
        before Triton is told to end: from then on Triton waits for the requests that run, but refuses new
        ones, and in the bls layout every round is a new one.
        """
        for gate in self._gates:
            gate.shut("stopping")
        self._drain()
        self._make_unready()
        quiet, deadline = 0, time.monotonic() + self._deployment.grace_s + 1
        while quiet < _QUIET and time.monotonic() < deadline and self._process.poll() is None:
            quiet = quiet + 1 if self._is_idle() else 0
            time.sleep(0.05)
        super().stop()
        # Triton keeps the files of a model that came by HTTP in a folder of /tmp until it ends (core,
        # `MakeTemporaryDirectory`), so one on this machine that had to be killed leaves them.
        for file in Path("/tmp").glob(f"folder*/1/{_mark()}"):  # noqa: S108
            shutil.rmtree(file.parents[1], ignore_errors=True)

    def _make_unready(self) -> None:
        """Makes the server say that it is not ready, while requests that run go on.

        Triton says so once a model has failed to load, so it is told to load one that must fail. No model is
        unloaded, since new requests would then be told that there is no such model.
        """
        model = json.dumps({"parameters": {"config": '{"backend": "none"}', f"file:1/{_mark()}": ""}})
        path, key = f"/v2/repository/models/{UNREADY}/load", {KEY_HEADER: self._deployment.key}
        self._deployment.ask(self._deployment.ports.http, path, "POST", model, key)

    def _is_idle(self) -> bool:
        """Says whether no completion runs, as far as the metrics know, which change 20 times a second."""
        return not any(float(number) for number in _RUNNING.findall(self._metrics()))

    def _check_answers(self) -> None:
        if time.monotonic() < self._next_ask:
            return
        status, silent = self._lost(), self._silent()
        self._next_ask = time.monotonic() + _ASK_S
        self._missed = self._missed + 1 if silent else 0
        if status is not None:
            problem = "tritonserver", f"a model's process {how_ended(status)}"
        elif silent and self._missed == _MOST_MISSED:
            problem = silent, f"has not answered {_MOST_MISSED} times in a row"
        else:
            return
        self.refuse("ended")
        raise self._error(*problem, None)

    def _silent(self) -> str | None:
        """Returns the name of what does not answer, Triton or the model behind it; None if both do.

        The model's process tells its own time every second; none where the metrics do not answer, or the
        model is none that tells it.
        """
        if self._deployment.ask(self._deployment.ports.http, "/v2/health/live")[0] != 200:
            return "tritonserver"
        pulse, before = _COUNTED.findall(self._metrics()), self._pulse
        self._pulse = pulse or before
        return self._deployment.model_name if before and pulse in ([], before) else None

    def _metrics(self) -> str:
        status, said = self._deployment.ask(self._deployment.ports.metrics, "/metrics")
        return said if status == 200 else ""

    def _lost(self) -> int | None:
        return self._stubs.lost() if self._stubs else None

    def _why(self, status: int) -> ServerError:
        self._check_loaded()
        said = self._said()
        if _PORT_TAKEN.search(said):
            return StuckError("tritonserver", "another program has taken its port", "start it again")
        cause = find_cause(_CAUSES, "\n".join(_ERROR.findall(said)))
        if deaths := _WATCHDOG.findall(said):
            model, how = deaths[0]
            return self._error(model, how, cause)
        return self._error("tritonserver", how_ended(status), cause)

    def _check_loaded(self) -> None:
        """Raises `ServerError` when a model did not load."""
        if failure := _LOAD_FAILURE.search(self._said()):
            cause = find_cause(_CAUSES, failure[1])
            repair = cause[1] if cause else self._log
            raise ServerError(self._deployment.model_name, f"did not load: {failure[1]}", repair)


def _mark() -> str:
    """Returns the name of the file by which the folder of `_make_unready` is known."""
    return f"trtspec-{os.getpid()}"


class Stubs:
    """The processes of the Python models of the process `server`, which may be mpirun."""

    def __init__(self, server: int) -> None:
        self._server, self._begun, self._ended = server, set[int](), dict[int, float]()

    def is_stuck(self) -> bool:
        """Says whether one has not come to its `initialize` in 25 seconds.

        One that has come there has a child, its watchdog, until it ends. Triton waits ten seconds for a
        process to come there; under load it then waits without a limit for it to end.
        """
        stubs = _stubs(self._server)
        self._begun = {pid for pid in stubs if pid in self._begun or _children(pid)}
        return any(_age(pid) > _BEGINNING_S for pid in stubs if pid not in self._begun)

    def lost(self) -> int | None:
        """Returns the exit status of one that has ended, negative for a signal, and that Triton waits for.

        It waits as long as for one that loads, or at work for ever. The status is None where there is no such
        process.
        """
        now, found = time.monotonic(), {pid: stat(pid) for pid in _dead_stubs(self._server)}
        self._ended = {pid: self._ended.get(pid, now) for pid in found}
        for pid, process in found.items():
            if process and now - self._ended[pid] > _SEEN_S:
                return os.waitstatus_to_exitcode(process.status)
        return None


def _stubs(pid: int) -> list[int]:
    return [child for child in _below(pid) if _STUB in _read(child, "cmdline")]


def _dead_stubs(pid: int) -> list[int]:
    """Returns those that have ended, and wait for their parent to ask how; they have no command line."""
    return [
        child
        for child in _below(pid)
        if _read(child, "comm").strip() == _NAME and not _read(child, "cmdline")
    ]


def _below(pid: int) -> list[int]:
    """Returns the children of a process, and theirs; not those of stubs."""
    found = []
    for child in _children(pid):
        found += [child] if _STUB in _read(child, "cmdline") else [child, *_below(child)]
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # It has just ended.
        return []
    return [int(child) for task in tasks for child in _read(pid, f"task/{task}/children").split()]


def _age(pid: int) -> float:
    """Returns the age of a process in seconds, from ticks of a hundredth (proc_pid_stat(5))."""
    process = stat(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(process.born) / 100 if process else 0.0


def _read(pid: int, name: str) -> bytes:
    """Returns a file of a process; it is empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
