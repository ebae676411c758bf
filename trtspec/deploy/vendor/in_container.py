"""Somebody else's server in a container of its vendor's image."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from trtspec.backends.containers.container import Container, Health, Mount, name_for
from trtspec.backends.containers.engine import ContainerEngine
from trtspec.backends.servers.launch import ServerLaunch
from trtspec.deploy.logs import begin_log
from trtspec.deploy.one_container import (
    ANY,
    LABEL,
    ContainerProcess,
    OneContainer,
    published,
    remove_last,
    words,
)
from trtspec.deploy.vendor.command import options
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.models import Models
from trtspec.deploy.vendor.server import VendorServer
from trtspec.gateway.ports import address_of, listen

VENDOR = f"{LABEL}.vendor"
"""The label that tells these containers from Triton's: the backend."""

# Python asks, since the images certainly have it.
_READY = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}/health\", timeout=4)'"


def container(
    launch: ServerLaunch, deployment: VendorDeployment, models: Models, gpus: tuple[str, ...]
) -> Container:
    """Returns the container of a deployment, in which the build and the models can only be read; pure.

    `gpus` are those of `Container`. The image's own entry point is not used: vLLM's is `vllm serve`, and
    others have none.
    """
    build = deployment.build
    first, *rest = launch.program
    made = Container(
        image=launch.image,
        name=name_for(deployment.container_name, build),
        entrypoint=first,
        command=(*rest, *options(launch, build, ANY, deployment.port, deployment.grace_s)),
        folder=build,
        mounts=(Mount(build, read_only=True),),
        gpus=gpus,
        environment={"PYTHONDONTWRITEBYTECODE": "1", **launch.environment},
        secrets=tuple(deployment.secrets),
        labels={
            LABEL: deployment.name,
            f"{LABEL}.build": str(build),
            f"{LABEL}.host": deployment.host,
            f"{LABEL}.openai": str(deployment.port),
            f"{LABEL}.grace": f"{deployment.grace_s:g}",
            f"{LABEL}.model": deployment.model_name,
            VENDOR: deployment.backend,
        },
        publish=published(address_of(deployment.host), (deployment.port,)),
        health=Health(_READY.format(deployment.port), deployment.start_s),
    )
    return models.mounted(made)


@contextmanager
def serve(
    deployment: VendorDeployment, made: Container, engine: ContainerEngine, *, detach: bool
) -> Iterator[Callable[[], VendorServer]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and is started again when it fails. Raises `UnavailableError` before anything starts
    when the port is taken, the same build is served already, or a container that is not ours has the name.
    """
    program = engine.program
    remove_last(program, made.name, deployment.build)
    listen(deployment.host, deployment.port, "openai").close()
    begin_log(deployment.log)
    line = words(made, engine, detach=detach)[1:]
    there = OneContainer(program, line, made.name, deployment.build, deployment.log, deployment.secrets)

    def start() -> VendorServer:
        process = ContainerProcess(program, there.start(), there.copy)
        return VendorServer(deployment, process)

    with ExitStack() as stack:
        stack.callback(there.end)
        yield start
        if detach:
            there.leave()
            stack.pop_all()
