"""Serves in a container of docker or podman, with NVIDIA's or the vendor's image."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from trtspec.base.process_limits import check_open_files
from trtspec.base.progress import Progress
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.container import OneContainer, labels_of, remove_last, words
from trtspec.deployment.deployed import running_in
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.here import check_path
from trtspec.deployment.logs import begin_log
from trtspec.deployment.openai import OpenAi
from trtspec.deployment.server import RunningServer
from trtspec.deployment.site import HIDDEN, Launch, Site
from trtspec.gateway.ports import address_of, check_free
from trtspec.pipeline.containers.container import Container, Health, Mount, name_for
from trtspec.pipeline.containers.engine import ContainerEngine, find_engine
from trtspec.pipeline.containers.oddities import logout
from trtspec.pipeline.containers.state import ensure_image
from trtspec.pipeline.machine.devices import container_gpus, find_gpus

# The check runs in Python, which all images have.
_READY = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}{}\", timeout=4)'"


def in_container(build: DeployedBuild, deployment: Deployment, launch: Launch, *, detach: bool) -> Site:
    """Returns a container with the recipe's GPUs as the place to serve a build; `detach` leaves it running.

    Raises `UnavailableError` if neither docker nor podman answers.
    """
    engine, image, hardware = find_engine(), build.image, build.recipe.hardware
    gpus: tuple[str, ...] = ()
    if hardware.gpu != "none":
        gpus = container_gpus(find_gpus(), hardware.count, engine.devices)
    made = container(deployment, launch, image, gpus)
    line = words(made, engine, detach=detach)
    ends = logout(engine) if detach and engine.ends_at_logout else None

    def prepare(watch: Progress) -> None:
        check_open_files()
        launch.check_image(build)
        if problem := engine.obstacle_to(gpus=bool(gpus)):
            raise problem
        ensure_image(engine.program, image, watch)

    return Site(
        deployment,
        shlex.join(word.replace(deployment.key, HIDDEN) for word in line),
        prepare,
        partial(serve, deployment, launch, made, engine, detach=detach),
        f"{ends.problem}; {ends.repair} keeps them running" if ends else None,
        made.name if detach else None,
    )


def container(deployment: Deployment, launch: Launch, image: str, gpus: tuple[str, ...]) -> Container:
    """Returns the container of a deployment; the build and the models are read-only in it; pure.

    `gpus` are those of `Container`. The entry point of another engine's image is not used: vLLM's is `vllm
    serve`, and others have none.
    """
    command, build = launch.in_container(deployment, len(gpus)), deployment.build
    address = address_of(deployment.host)
    outside = f"[{address}]" if ":" in address else address
    first, *rest = command.argv
    made = Container(
        image=image,
        name=name_for(deployment.container_name, build),
        entrypoint=None if deployment.is_triton else first,
        command=command.argv if deployment.is_triton else tuple(rest),
        folder=build,
        mounts=(Mount(build, read_only=True),),
        gpus=gpus,
        environment={"PYTHONDONTWRITEBYTECODE": "1", **command.environment},
        secrets=tuple(command.secrets),
        labels=labels_of(deployment),
        # The server listens on every address of the container's network; this limits the addresses outside.
        publish=tuple(f"{outside}:{port}:{port}" for port in deployment.own_ports.values()),
        health=Health(_READY.format(deployment.asked_port, deployment.kind.ready[0]), deployment.start_s),
    )
    return launch.mounted(made)


@contextmanager
def serve(
    deployment: Deployment, launch: Launch, made: Container, engine: ContainerEngine, *, detach: bool
) -> Iterator[Callable[[], RunningServer]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and is started again when it fails. Raises `UnavailableError` before anything starts if a
    port is taken, Triton cannot serve from the path, the same build is served already, or a foreign container
    has the name. OpenAI's API in front of Triton is a process of this machine, which ends with the container.
    """
    if deployment.is_triton:
        check_path(deployment.repository)
    remove_last(engine.program, made.name, deployment.build)
    check_free(deployment.host, deployment.all_ports)
    begin_log(deployment.log)
    has_api = deployment.is_triton and deployment.ports.openai
    api = OpenAi(deployment, deployment.url_host) if has_api else None
    secrets = launch.in_container(deployment, len(made.gpus)).secrets
    line = words(made, engine, detach=detach)[1:]
    there = OneContainer(engine.program, line, made.name, deployment.build, deployment.log, secrets)

    def start() -> RunningServer:
        return running_in(there.start(), deployment, *filter(None, (api,)))

    with ExitStack() as stack:
        stack.callback(there.end)
        if api:
            api.start()
            stack.callback(api.close)
        yield start
        if detach:
            left = there.leave()
            if api:
                api.leave(left)
            stack.pop_all()
