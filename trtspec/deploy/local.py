"""A Triton server on this machine."""

from __future__ import annotations

import http.client
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.deploy.ports import Ports, check_free
from trtspec.deploy.wheel import TritonWheel
from trtspec.errors import ServerError, UnavailableError

# What is in flight gets this long to end when the server is told to.
DRAIN_S = 10
_KILL_AFTER_S = DRAIN_S + 5
# So often in a row must the metrics say that nothing runs, since they come late.
_QUIET = 3

# What the model said; Triton writes line ends as two characters, and a trace after the second.
_LOAD_FAILURE = re.compile(
    r"failed to load '[^']*' version \d+: \w+: (?:TritonModelException: )?(.+?)(?:\\n|\"\n)"
)

_RUNNING = re.compile(r"^trtspec:num_requests_running\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Deployment:
    """What is served and where; `start_s` is how long the engines may take to load."""

    repository: Path
    model_name: str
    log: Path
    host: str = "127.0.0.1"
    ports: Ports = field(default_factory=Ports)
    start_s: float = 300.0

    @property
    def client_host(self) -> str:
        """Where a client on this machine finds the server."""
        return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(self.host, self.host)  # noqa: S104

    def answers(self, path: str) -> bool:
        """Whether the server says 200 to a GET."""
        return self._get(self.ports.http, path) is not None

    def is_idle(self) -> bool:
        """Whether no completion runs, as far as the metrics know; they are told 20 times a second."""
        running = _RUNNING.findall(self._get(self.ports.metrics, "/metrics") or "")
        return not any(float(number) for number in running)

    def _get(self, port: int, path: str) -> str | None:
        """What a 200 brings; proxies of the environment are not asked."""
        with closing(http.client.HTTPConnection(self.client_host, port, timeout=5)) as connection:
            try:
                connection.request("GET", path)
                response = connection.getresponse()
                return response.read().decode(errors="replace") if response.status == 200 else None
            except (OSError, http.client.HTTPException):
                return None


class LocalServer:
    """A running tritonserver, in a session of its own so that the terminal's Ctrl-C does not reach it."""

    def __init__(self, deployment: Deployment, process: subprocess.Popen[bytes]) -> None:
        self._deployment, self._process = deployment, process
        self._deadline = time.monotonic() + deployment.start_s

    def is_ready(self) -> bool:
        """Raises `ServerError` when the server has ended, or takes longer than it may."""
        self.check_running()
        deployment = self._deployment
        if deployment.answers(f"/v2/models/{deployment.model_name}/ready"):
            return deployment.answers("/v2/health/ready")
        if time.monotonic() > self._deadline:
            problem = f"not ready after {deployment.start_s:g} s"
            raise ServerError("tritonserver", problem, "give it longer with --timeout")
        return False

    def check_running(self) -> None:
        """Raises `ServerError` when the server has ended by itself."""
        status = self._process.poll()
        if status is None:
            return
        log = self._deployment.log
        if failure := _LOAD_FAILURE.search(log.read_text(encoding="utf-8", errors="replace")):
            raise ServerError(self._deployment.model_name, f"did not load: {failure[1]}", f"its log is {log}")
        how = f"was killed by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
        raise ServerError("tritonserver", how, f"its log is {log}")

    def stop(self) -> None:
        """Tells the server to end when the requests in flight have, and waits; for ever it does not.

        Triton itself waits for a request, but takes in no others meanwhile, which every round is in the bls
        layout.
        """
        self._drain()
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(_KILL_AFTER_S)

    def _drain(self) -> None:
        quiet, deadline = 0, time.monotonic() + DRAIN_S
        while quiet < _QUIET and time.monotonic() < deadline and self._process.poll() is None:
            quiet = quiet + 1 if self._deployment.is_idle() else 0
            time.sleep(0.05)

    def kill(self) -> None:
        """The server and the processes that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


@contextmanager
def serve(deployment: Deployment, wheel: TritonWheel) -> Iterator[LocalServer]:
    """Starts a server, which may not be ready yet, and stops it at the end.

    Raises `UnavailableError` before anything starts when a port is taken, or a path cannot be served from.
    """
    for path in (deployment.repository.resolve(), wheel.backends):
        _check_path(path)
    check_free(deployment.host, deployment.ports)
    memory = f"trtspec_{uuid.uuid4().hex}_"
    command = [sys.executable, "-m", "trtspec.deploy.leash", str(os.getpid())]
    command += _command(deployment, wheel, memory)
    with deployment.log.open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            command,
            env=wheel.environment(),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    server = LocalServer(deployment, process)
    try:
        yield server
        server.stop()
    finally:
        server.kill()
        # A server that is killed leaves what it shared with its processes.
        for region in Path("/dev/shm").glob(f"{memory}*"):  # noqa: S108
            region.unlink(missing_ok=True)


def last_lines(log: Path, count: int = 12) -> list[str]:
    """The end of a log, without Triton's tables."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return [line for line in lines if line and line[0] not in "+|"][-count:]


def _check_path(path: Path) -> None:
    """The Python backend starts its processes with these paths, unquoted, in a line for the shell."""
    if shlex.quote(str(path)) != str(path):
        repair = "have the build, and TRTSPEC_CACHE, in folders with plain names"
        raise UnavailableError(path, "Triton cannot serve from a path with special characters", repair)


def _command(deployment: Deployment, wheel: TritonWheel, memory: str) -> list[str]:
    """`memory` begins the names of the shared memory that the server makes."""
    host, ports = deployment.host, deployment.ports
    command = [
        str(wheel.server),
        f"--model-repository={deployment.repository.resolve()}",
        f"--backend-directory={wheel.backends}",
        f"--backend-config=python,stub-timeout-seconds={deployment.start_s:.0f}",
        f"--backend-config=python,shm-region-prefix-name={memory}",
        "--disable-auto-complete-config",
        f"--exit-timeout-secs={DRAIN_S}",
        f"--http-address={host}",
        f"--grpc-address={host}",
        f"--metrics-address={host}",
        f"--http-port={ports.http}",
        f"--grpc-port={ports.grpc}",
        f"--metrics-port={ports.metrics}",
    ]
    if not Path("/dev/nvidiactl").exists():
        command.append("--allow-gpu-metrics=false")
    return command
