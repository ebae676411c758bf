"""A Triton server in a container of NVIDIA's image."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, launch
from trtspec.deploy.options import server_options
from trtspec.deploy.ports import address_of, check_free
from trtspec.deploy.server import Server, check_path
from trtspec.docker import command
from trtspec.docker.container import Container, Mount, name_for
from trtspec.docker.state import find_state, remove
from trtspec.errors import UnavailableError

LABEL = "trtspec.deployment"


def container(deployment: Deployment, image: str, gpus: tuple[str, ...], user: str | None) -> Container:
    """In which the build directory can only be read; `gpus` and `user` are those of `Container`. Pure."""
    # Its network is its own: what is published is up to docker.
    options = server_options(deployment, "0.0.0.0", "trtspec_", bool(gpus))  # noqa: S104
    started = launch([SERVER, *options], deployment.ranks, len(gpus))
    host, ports = address_of(deployment.host), deployment.ports
    host = f"[{host}]" if ":" in host else host
    return Container(
        image=image,
        name=name_for(deployment.name, deployment.build),
        command=started.argv,
        folder=deployment.build,
        mounts=(Mount(deployment.build, read_only=True),),
        gpus=gpus,
        user=user,
        environment={"PYTHONDONTWRITEBYTECODE": "1", **started.environment},
        labels={
            LABEL: deployment.name,
            f"{LABEL}.build": str(deployment.build),
            f"{LABEL}.model": deployment.model_name,
            f"{LABEL}.host": deployment.host,
            f"{LABEL}.ports": f"{ports.http},{ports.grpc},{ports.metrics}",
        },
        publish=tuple(f"{host}:{port}:{port}" for port in (ports.http, ports.grpc, ports.metrics)),
    )


@contextmanager
def serve(deployment: Deployment, made: Container, detach: bool) -> Iterator[Server]:
    """Starts the container, which may not be ready yet, and removes it at the end unless it is to be left.

    What is raised removes it in any case. Raises `UnavailableError` before anything starts when a port is
    taken, a path cannot be served from, or the same build is served already.
    """
    check_path(deployment.repository)
    if (state := find_state(made.name)) and state.is_running:
        raise UnavailableError(made.name, "is running already", f"trtspec deploy stop {made.name}")
    check_free(deployment.host, deployment.ports)
    remove(made.name)
    try:
        command.run(*made.run("--detach")[1:])
        with _followed(deployment, made.name) as follower:
            server = Server(deployment, ContainerProcess(made.name, follower))
            yield server
            if detach:
                return
            server.stop()
    except BaseException:
        remove(made.name)
        raise
    remove(made.name)


class ContainerProcess:
    """The first process of a container; `follower` ends with it."""

    def __init__(self, name: str, follower: subprocess.Popen[bytes] | None = None) -> None:
        self._name, self._follower = name, follower

    def poll(self) -> int | None:
        if self._follower and self._follower.poll() is None:
            return None
        state = find_state(self._name)
        if state is None:
            return -signal.SIGKILL
        return None if state.is_running else state.status

    def stop(self, seconds: int) -> None:
        command.run_if_there("stop", "-t", str(seconds), self._name)


@contextmanager
def _followed(deployment: Deployment, name: str) -> Iterator[subprocess.Popen[bytes]]:
    """What the container says goes to the deployment's log."""
    with deployment.log.open("wb") as log:
        follower = command.start(("logs", "--follow", name), log)
    try:
        yield follower
    finally:
        follower.kill()
        follower.wait()
