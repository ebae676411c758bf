"""A Triton server on this machine, which may be a container of NVIDIA's image."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from yarl import URL

from trtspec.base.child import ChildProcess
from trtspec.base.errors import UnavailableError
from trtspec.base.progress import Progress
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, LaunchCommand, launch
from trtspec.deploy.openai import Doors, OpenAi
from trtspec.deploy.processes import Stubs
from trtspec.deploy.server import Door, TritonServer, check_path
from trtspec.deploy.shared_memory import PREFIX, Regions, is_any_abandoned, remove_abandoned
from trtspec.deploy.triton import TritonInstall
from trtspec.deploy.tritonserver_options import server_options
from trtspec.deploy.wheel import find_wheel
from trtspec.gateway.addresses import LOOPBACK
from trtspec.gateway.ports import check_free, reserved_ports
from trtspec.gateway.triton.front import Front
from trtspec.serving.triton.stopping import STOPPING

_END_S = 5.0


def find_triton() -> TritonInstall:
    """Returns the Triton of NVIDIA's image if this is one, else one on PATH, else that of the wheel.

    Raises `UnavailableError` where there is none.
    """
    for server in (SERVER, shutil.which("tritonserver")):
        if server and os.access(server, os.X_OK):
            return TritonInstall(Path(server))
    return find_wheel()


def line(deployment: Deployment, triton: TritonInstall, gpus: int, memory: str = PREFIX) -> LaunchCommand:
    """Returns the command to run in the build directory, with the variables that it needs.

    The ports of `deployment` are those behind the front. `gpus` is how many GPUs
    this machine has, and `memory` begins the names of the server's shared memory.
    """
    options = server_options(deployment, LOOPBACK, memory, has_gpus=gpus > 0)
    server = [str(triton.server), *options]
    if triton.backends:
        server.append(f"--backend-directory={triton.backends}")
    started = launch(server, deployment.ranks, gpus)
    return LaunchCommand(started.argv, {**triton.variables, **started.environment, **deployment.environment})


def wait_for_ports(deployment: Deployment, watch: Progress) -> None:
    """Waits while the ports are taken and the server of a deploy that was killed may be ending.

    That is as long as Triton may take to end; whoever has the ports then is another.
    """
    deadline = time.monotonic() + deployment.grace_s + _END_S
    if _are_free(deployment) or not is_any_abandoned():
        return
    with watch("wait for a server that is ending", None):
        while not _are_free(deployment) and time.monotonic() < deadline:
            time.sleep(0.1)


def _are_free(deployment: Deployment) -> bool:
    try:
        check_free(deployment.host, deployment.ports)
    except UnavailableError:
        return False
    return True


@contextmanager
def serve(deployment: Deployment, triton: TritonInstall, gpus: int) -> Iterator[Callable[[], TritonServer]]:
    """Yields a function that starts a server, which may not be ready yet; each call first ends the last one.

    The last server is ended at the end of the block. Raises `UnavailableError` before anything starts when a
    port is taken, a path cannot be served from, or there is no mpirun for engines that need it.
    """
    for path in filter(None, (deployment.repository, triton.backends)):
        check_path(path)
    check_free(deployment.host, deployment.ports)
    command = line(deployment, triton, gpus).argv[0]
    if shutil.which(command, path=triton.environment().get("PATH")) is None:
        problem = "is not on PATH, and starts engines of several ranks"
        raise UnavailableError(command, problem, "NVIDIA's image has it: trtspec deploy --container")
    remove_abandoned()
    deployment.begin_log()
    with ExitStack() as stack:
        api_url = URL(deployment.api_url).origin() if deployment.api_url else None
        front = Front(deployment.host, deployment.ports, deployment.model_name, api_url)
        front.start()
        stack.callback(front.close)
        doors: list[Door] = [front]
        if deployment.ports.openai:
            api = OpenAi(deployment, LOOPBACK)
            api.start()
            stack.callback(api.close)
            doors.append(api)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="trtspec-"))
        regions = Regions()
        stack.callback(regions.close)
        local = _Local(deployment, triton, gpus, Doors(*doors), Path(folder, "stopping"), regions)
        stack.callback(local.end)
        yield local.start


class _Local:
    """Runs at most one server at a time; `stopping` is the file that tells its model to drain."""

    def __init__(
        self,
        deployment: Deployment,
        triton: TritonInstall,
        gpus: int,
        door: Door,
        stopping: Path,
        regions: Regions,
    ) -> None:
        self._deployment, self._triton, self._gpus = deployment, triton, gpus
        self._door, self._stopping, self._regions = door, stopping, regions
        self._process: _Triton | None = None
        self._reserved = ExitStack()

    def start(self) -> TritonServer:
        self.end()
        http, grpc, metrics = self._reserved.enter_context(reserved_ports(3))
        ports = replace(self._deployment.ports, http=http, grpc=grpc, metrics=metrics)
        inside = replace(self._deployment, ports=ports)
        started = line(inside, self._triton, self._gpus, self._regions.prefix)
        environment = {**self._triton.environment(), **started.environment, STOPPING: str(self._stopping)}
        self._process = _Triton(started.argv, inside, environment, self._stopping)
        return TritonServer(replace(inside, private_host=LOOPBACK), self._process, self._door)

    def end(self) -> None:
        if self._process:
            self._process.kill()
        self._reserved.close()
        # A server that is killed leaves the memory that it shared with its processes.
        self._regions.remove()


class _Triton(ChildProcess):
    """The process of a Triton, whose model is told to drain by the file `stopping`."""

    def __init__(
        self, command: Sequence[str], deployment: Deployment, environment: Mapping[str, str], stopping: Path
    ) -> None:
        # Triton would wait for requests and connections, with its ports taken, though its front is gone. Its
        # stubs end with it; the processes of mpirun do only if that is told to end.
        orphaned = signal.SIGKILL if deployment.ranks == 1 else signal.SIGTERM
        with deployment.log.open("ab") as log:
            super().__init__(
                command, log, folder=deployment.build, environment=environment, orphaned=orphaned
            )
        self._stopping, self._grace_s = stopping, deployment.grace_s
        self._stubs = Stubs(self.pid)

    def is_stuck(self) -> bool:
        return self._stubs.is_stuck()

    def lost(self) -> int | None:
        return self._stubs.lost()

    def drain(self) -> None:
        self._stopping.write_text(f"{self._grace_s}")
