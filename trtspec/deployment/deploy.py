"""Serves a build for the time of a block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from trtspec.base.errors import StuckError
from trtspec.base.progress import Progress, no_progress
from trtspec.deployment.build import DeployedBuild, find_build
from trtspec.deployment.container import container_place
from trtspec.deployment.deployment import TRITON, Deployment, kind_of
from trtspec.deployment.engine_server import EngineServerLaunch, engine_server_launch
from trtspec.deployment.local import local_place
from trtspec.deployment.options import DeployOptions, with_own_logs
from trtspec.deployment.place import ServingPlace
from trtspec.deployment.server import RunningServer
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.openai.settings import ModelCard

_LOOK_S = 0.1


@contextmanager
def deploy(
    recipe: Path | str,
    *,
    output: Path | str | None = None,
    container: bool = False,
    options: DeployOptions | None = None,
    progress: Progress = no_progress,
    warn: Callable[[str], object] = lambda _: None,
) -> Iterator[Deployment]:
    """Serves the build of a recipe, and stops the server at the end of the block; yields its addresses.

    The build is in `output`, or in the usual folder. It is served by what is installed here, or with
    `container` in NVIDIA's or the vendor's image. The block begins when the server is ready. `progress`
    reports downloads before that, and `warn` gets harmless problems.

    Raises RecipeError, UnavailableError if there is no build or nothing that could serve it, and ServerError
    for a server that does not become ready.
    """
    build = find_build(recipe, output)
    if stale := build.staleness:
        warn(f"{stale}; trtspec serves the build as it is")
    with with_own_logs(build, options or DeployOptions()) as asked:
        place = place_of(build, asked, container=container)
        place.prepare(progress)
        for warning in place.warnings:
            warn(warning)
        with running(place):
            yield place.deployment


def place_of(
    build: DeployedBuild, options: DeployOptions, *, container: bool = False, detach: bool = False
) -> ServingPlace:
    """Returns the place to serve a build: this machine, or a container, which `detach` leaves running.

    Raises `UnavailableError` if nothing there could serve it, or its server does not take such keys.
    """
    deployment, launch = _deployment_of(build, options)
    if not container:
        return local_place(build, deployment, launch, options.python)
    return container_place(build, deployment, launch, detach=detach)


def _deployment_of(
    build: DeployedBuild, options: DeployOptions
) -> tuple[Deployment, TritonLaunch | EngineServerLaunch]:
    """Returns the deployment of a build and how its server is started."""
    server = build.launch
    models = None
    if server:
        models = engine_server_launch(build, server, plain=options.plain, api_keys=options.api_keys)
    serving = build.recipe.serving
    kind, name, ports = TRITON, serving.triton_name, options.ports
    launch: TritonLaunch | EngineServerLaunch
    if models and not build.is_for_triton:
        launch, kind, name = models, kind_of(models.launch.backend), models.launch.served_model_name
    else:
        # What vLLM loads in Triton has no API of OpenAI's in front of it.
        ports = replace(ports, openai=None) if models else ports
        launch = TritonLaunch(
            ranks=build.ranks,
            loads_one_by_one=build.shares_a_server,
            trace_config=options.trace_config,
            rollout=options.rollout,
            models=models,
        )
    names = tuple(dict.fromkeys((serving.model_name, *serving.aliases)))
    deployment = Deployment(
        name=build.recipe.name,
        build=build.folder.resolve(),
        model_name=name,
        card=ModelCard(
            names=() if names == (serving.triton_name,) else names,
            reasoning_parser=serving.reasoning_parser,
            has_own_sampling=serving.generation_config == "auto",
            max_model_len=build.max_model_len,
        ),
        kind=kind,
        host=options.host,
        allowed_hosts=options.allowed_hosts,
        ports=ports,
        start_s=options.start_s or build.start_limit.seconds,
        grace_s=options.grace_s,
        is_plain=options.plain and kind is not TRITON,
        json_logs=options.json_logs,
        api_keys=options.api_keys,
        logs=options.logs,
        log_number=options.log_number,
    )
    return deployment, launch


@contextmanager
def running(place: ServingPlace) -> Iterator[None]:
    """Starts the server of a place that is prepared, waits until it is ready, and stops it with the block."""
    with place.serve() as start:
        server = _ready(start)
        try:
            yield
        finally:
            server.stop()


def _ready(start: Callable[[], RunningServer]) -> RunningServer:
    """Returns a server that is ready; repeats a start that hangs in Triton."""
    for is_last in (False, False, True):
        server = start()
        try:
            while not server.is_ready():
                time.sleep(_LOOK_S)
            break
        except StuckError:
            if is_last:
                raise
    return server
