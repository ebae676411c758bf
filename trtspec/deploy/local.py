"""A Triton server on this machine, which may be inside of NVIDIA's image."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, Launch, launch
from trtspec.deploy.options import server_options
from trtspec.deploy.ports import check_free
from trtspec.deploy.server import Server, check_path
from trtspec.deploy.triton import Triton
from trtspec.deploy.wheel import find_wheel
from trtspec.errors import UnavailableError

_MEMORY = "trtspec_"


def find_triton() -> Triton:
    """That of NVIDIA's image where this is one, one on PATH, or that of the wheel.

    Raises `UnavailableError` where there is none.
    """
    for server in (SERVER, shutil.which("tritonserver")):
        if server and os.access(server, os.X_OK):
            return Triton(Path(server))
    return find_wheel()


def line(deployment: Deployment, triton: Triton, gpus: int, memory: str = _MEMORY) -> Launch:
    """What is run in the build directory, with the variables that it needs; `gpus` is how many are here."""
    server = [str(triton.server), *server_options(deployment, deployment.host, memory, gpus > 0)]
    if triton.backends:
        server.append(f"--backend-directory={triton.backends}")
    started = launch(server, deployment.ranks, gpus)
    return Launch(started.argv, {**triton.variables, **started.environment})


@contextmanager
def serve(deployment: Deployment, triton: Triton, gpus: int) -> Iterator[Server]:
    """Starts a server, which may not be ready yet, and stops it at the end.

    Raises `UnavailableError` before anything starts when a port is taken, a path cannot be served from, or
    there is no mpirun for engines that need it.
    """
    for path in filter(None, (deployment.repository, triton.backends)):
        check_path(path)
    check_free(deployment.host, deployment.ports)
    memory = f"{_MEMORY}{uuid.uuid4().hex}_"
    started = line(deployment, triton, gpus, memory)
    environment = {**triton.environment(), **started.environment}
    if shutil.which(started.argv[0], path=environment.get("PATH")) is None:
        problem = "is not on PATH, and starts engines of several ranks"
        raise UnavailableError(started.argv[0], problem, "NVIDIA's image has it: trtspec deploy --docker")
    with deployment.log.open("wb") as log:
        process = _Group(
            subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "trtspec.deploy.leash", str(os.getpid()), *started.argv],
                cwd=deployment.build,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        )
    server = Server(deployment, process)
    try:
        yield server
        server.stop()
    finally:
        process.kill()
        # A server that is killed leaves what it shared with its processes.
        for region in Path("/dev/shm").glob(f"{memory}*"):  # noqa: S108
            region.unlink(missing_ok=True)


class _Group:
    """A process in a session of its own, so that the terminal's Ctrl-C does not reach it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def poll(self) -> int | None:
        return self._process.poll()

    def stop(self, seconds: int) -> None:
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
