"""A Triton server in a container of NVIDIA's image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from trtspec.backends.containers.container import Container, Health, Mount, name_for
from trtspec.backends.containers.engine import ContainerEngine
from trtspec.backends.containers.program import Program
from trtspec.deploy.container_log import ContainerLog
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, launch
from trtspec.deploy.one_container import (
    ANY,
    LABEL,
    ContainerProcess,
    OneContainer,
    published,
    remove_last,
    words,
)
from trtspec.deploy.openai import OpenAi
from trtspec.deploy.server import TritonServer, check_path
from trtspec.deploy.shared_memory import PREFIX
from trtspec.deploy.tritonserver_options import server_options
from trtspec.gateway.client_bounds import MAX_BODY
from trtspec.gateway.ports import address_of, check_free
from trtspec.serving.triton.stopping import STOPPING

# Python asks, since the image certainly has it.
_READY = (
    "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}/v2/health/ready\", timeout=4)'"
)


def container(deployment: Deployment, image: str, gpus: tuple[str, ...]) -> Container:
    """Returns the container of a deployment, in which the build directory can only be read; pure.

    `gpus` are those of `Container`.
    """
    # The server listens on every address of the container's own network; `publish` says what is seen outside.
    options = server_options(deployment, ANY, PREFIX, has_gpus=bool(gpus))
    started = launch([SERVER, *options, f"--http-max-input-size={MAX_BODY}"], deployment.ranks, len(gpus))
    ports, name = deployment.ports, name_for(deployment.container_name, deployment.build)
    return Container(
        image=image,
        name=name,
        command=started.argv,
        folder=deployment.build,
        mounts=(Mount(deployment.build, read_only=True),),
        gpus=gpus,
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
            # The key is among the server's options too, and whoever may ask for it may do anything.
            f"{LABEL}.key": deployment.key,
        },
        publish=published(address_of(deployment.host), (ports.http, ports.grpc, ports.metrics)),
        health=Health(_READY.format(ports.http), deployment.start_s),
    )


def _stopping(name: str) -> str:
    """Returns the path, in the container, of the file that tells the model that the server is to stop."""
    return f"/tmp/{name}-stopping"  # noqa: S108


class TritonProcess(ContainerProcess):
    """The first process of a container with a Triton."""

    def __init__(
        self,
        program: Program,
        container_id: str,
        name: str,
        grace_s: float,
        log: ContainerLog | None = None,
    ) -> None:
        super().__init__(program, container_id, log)
        self._stopping, self._grace_s = _stopping(name), grace_s

    def is_stuck(self) -> bool:
        return False

    def lost(self) -> None:
        return None

    def drain(self) -> None:
        self._program.run_if_there("exec", self._id, "sh", "-c", f"echo {self._grace_s} > {self._stopping}")


@contextmanager
def serve(
    deployment: Deployment, made: Container, engine: ContainerEngine, *, detach: bool
) -> Iterator[Callable[[], TritonServer]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and is started again when it fails. Raises `UnavailableError` before anything starts
    when a port is taken, a path cannot be served from, the same build is served already, or a container that
    is not ours has the name. OpenAI's API is a process of this machine, which ends with the container.
    """
    check_path(deployment.repository)
    program = engine.program
    remove_last(program, made.name, deployment.build)
    check_free(deployment.host, deployment.ports)
    deployment.begin_log()
    api = OpenAi(deployment, deployment.url_host) if deployment.ports.openai else None
    line = words(made, engine, detach=detach)[1:]
    there = OneContainer(program, line, made.name, deployment.build, deployment.log)

    def start() -> TritonServer:
        process = TritonProcess(program, there.start(), made.name, deployment.grace_s, there.copy)
        return TritonServer(deployment, process, api)

    with ExitStack() as stack:
        stack.callback(there.end)
        if api:
            api.start()
            stack.callback(api.close)
        yield start
        if detach:
            container = there.leave()
            if api:
                api.leave(container)
            stack.pop_all()
