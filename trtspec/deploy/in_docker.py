"""A Triton server in a container of NVIDIA's image."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from trtspec.client_bounds import MAX_BODY
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, launch
from trtspec.deploy.openai import OpenAi
from trtspec.deploy.ports import address_of, check_free
from trtspec.deploy.server import Server, check_path
from trtspec.deploy.shared_memory import PREFIX
from trtspec.deploy.tritonserver_options import server_options
from trtspec.docker import command
from trtspec.docker.container import Container, Health, Mount, name_for
from trtspec.docker.state import find_state, remove
from trtspec.errors import UnavailableError
from trtspec.serving.triton.stopping import STOPPING

LABEL = "trtspec.deployment"

_ANY = "0.0.0.0"  # noqa: S104
# Python asks, since the image certainly has it.
_READY = (
    "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}/v2/health/ready\", timeout=4)'"
)
_RESTART = "on-failure:5"


def container(deployment: Deployment, image: str, gpus: tuple[str, ...], user: str | None) -> Container:
    """Returns the container of a deployment, in which the build directory can only be read; pure.

    `gpus` and `user` are those of `Container`.
    """
    # The server listens on every address of the container's own network; what is published is up to docker.
    options = server_options(deployment, _ANY, _ANY, PREFIX, has_gpus=bool(gpus))
    started = launch([SERVER, *options, f"--http-max-input-size={MAX_BODY}"], deployment.ranks, len(gpus))
    host, ports = address_of(deployment.host), deployment.ports
    name = name_for(deployment.name, deployment.build)
    host = f"[{host}]" if ":" in host else host
    return Container(
        image=image,
        name=name,
        command=started.argv,
        folder=deployment.build,
        mounts=(Mount(deployment.build, read_only=True),),
        gpus=gpus,
        user=user,
        environment={
            "PYTHONDONTWRITEBYTECODE": "1",
            STOPPING: _stopping(name),
            **started.environment,
            **deployment.environment,
        },
        labels={
            LABEL: deployment.name,
            f"{LABEL}.build": str(deployment.build),
            f"{LABEL}.model": deployment.model_name,
            f"{LABEL}.host": deployment.host,
            f"{LABEL}.ports": f"{ports.http},{ports.grpc},{ports.metrics}",
            f"{LABEL}.grace": f"{deployment.grace_s:g}",
            **({f"{LABEL}.openai": str(ports.openai)} if ports.openai else {}),
            **({f"{LABEL}.api_keys": str(deployment.api_keys.resolve())} if deployment.api_keys else {}),
            # The key is among the server's options too, and whoever may ask docker may do anything.
            f"{LABEL}.key": deployment.key,
        },
        publish=tuple(f"{host}:{port}:{port}" for port in (ports.http, ports.grpc, ports.metrics)),
        health=Health(_READY.format(ports.http), deployment.start_s),
    )


def _stopping(name: str) -> str:
    """Returns the path, in the container, of the file that tells the model that the server is to stop."""
    return f"/tmp/{name}-stopping"  # noqa: S108


@contextmanager
def serve(deployment: Deployment, made: Container, *, detach: bool) -> Iterator[Callable[[], Server]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and docker starts it again when it fails. Raises `UnavailableError` before anything starts
    when a port is taken, a path cannot be served from, the same build is served already, or a container that
    is not ours has the name. OpenAI's API is a process of this machine, which ends with the container.
    """
    check_path(deployment.repository)
    if state := find_state(made.name):
        if state.is_running:
            raise UnavailableError(made.name, "is running already", f"trtspec deploy stop {made.name}")
        if state.labels.get(f"{LABEL}.build") != str(deployment.build):
            raise UnavailableError(made.name, "a container of this name is not ours", "docker rename it")
        remove(state.id)
    check_free(deployment.host, deployment.ports)
    deployment.begin_log()
    api = OpenAi(deployment, deployment.url_host) if deployment.ports.openai else None
    there = _There(deployment, made, api)
    with ExitStack() as stack:
        stack.callback(there.end)
        if api:
            api.start()
            stack.callback(api.close)
        yield there.start
        if detach:
            container = there.left()
            command.run("update", "--restart", _RESTART, container)
            if api:
                api.leave(container)
            stack.pop_all()


@dataclass(slots=True)
class _There:
    """Runs at most one container at a time, whose output goes to the log while this process runs."""

    deployment: Deployment
    made: Container
    api: OpenAi | None
    container_id: str | None = None
    follower: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        self.end()
        self.container_id = command.run(*self.made.run("--detach")[1:]).strip()
        with self.deployment.log.open("ab") as log:
            self.follower = command.start(("logs", "--follow", self.container_id), log)
        process = ContainerProcess(self.container_id, self.made.name, self.deployment.grace_s, self.follower)
        return Server(self.deployment, process, self.api)

    def left(self) -> str:
        """Stops following the container, and returns its id; the container goes on."""
        if self.follower:
            self.follower.kill()
            self.follower.wait()
        assert self.container_id
        return self.container_id

    def end(self) -> None:
        if self.container_id:
            remove(self.left())
            self.container_id = None


class ContainerProcess:
    """The first process of a container; `follower` is a `docker logs --follow`, which ends with it."""

    def __init__(
        self,
        container_id: str,
        name: str,
        grace_s: float,
        follower: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._id, self._stopping = container_id, _stopping(name)
        self._grace_s, self._follower = grace_s, follower

    def poll(self) -> int | None:
        if self._follower and self._follower.poll() is None:
            return None
        try:
            state = find_state(self._id)
        except UnavailableError:
            # A daemon that does not answer leaves its containers running.
            return None
        if state is None:
            return -signal.SIGKILL
        return None if state.is_running else state.status

    def is_stuck(self) -> bool:
        return False

    def drain(self) -> None:
        command.run_if_there("exec", self._id, "sh", "-c", f"echo {self._grace_s} > {self._stopping}")

    def stop(self, seconds: float) -> None:
        command.run_if_there("stop", "-t", f"{seconds:.0f}", self._id)
