"""Serves a build for the time of a block, on this machine or in a container.

This machine may itself be a container of NVIDIA's or the vendor's image.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path

from yarl import URL

from trtspec.base.child import ChildProcess
from trtspec.base.environment import without_secrets
from trtspec.base.errors import StuckError, UnavailableError
from trtspec.base.files import try_lock, unlock
from trtspec.base.process_limits import check_open_files
from trtspec.base.progress import Progress, no_progress
from trtspec.client.local_server import servers_folder
from trtspec.deployment.build import DeployedBuild, find_build
from trtspec.deployment.container import container_place
from trtspec.deployment.deployment import TRITON, Deployment, DeployOptions, rollout_file
from trtspec.deployment.engine_server import EngineServerLaunch, difference, engine_server_launch
from trtspec.deployment.openai import OpenAi
from trtspec.deployment.place import LaunchCommand, ServingPlace
from trtspec.deployment.preview import local_commands
from trtspec.deployment.rollout.steps import left_rollout
from trtspec.deployment.server import RunningServer, begin_log
from trtspec.deployment.triton.install import (
    Regions,
    TritonInstall,
    check_path,
    find_triton,
    is_any_abandoned,
    remove_abandoned,
)
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.deployment.triton.server import RequestGate, Stubs, TritonServer
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.ports import LOOPBACK, Ports, are_free, check_free, reserved_ports
from trtspec.gateway.triton.front import Front
from trtspec.pipeline.machine.devices import find_gpus
from trtspec.pipeline.machine.host import this_runtime
from trtspec.serving.triton.agreement import STOPPING

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
    build = find_build(recipe, output, container=container)
    if stale := build.staleness:
        warn(f"{stale}; trtspec serves the build as it is")
    with with_own_logs(build, options or DeployOptions()) as asked:
        place = place_of(build, asked, container=container)
        for warning in place.warnings:
            warn(warning)
        place.prepare(progress)
        with running(place):
            yield place.deployment


@contextmanager
def with_own_logs(build: DeployedBuild, options: DeployOptions) -> Iterator[DeployOptions]:
    """Yields the options of a server whose logs have a number that no other server's have meanwhile.

    Where nothing can be locked, the logs are those without a number. The lock is not beside the logs, since
    serving leaves a build as it is.
    """
    logs = f"{(options.logs or build.folder).resolve()}{'-plain' * options.plain}"
    name, locks, number, held = sha256(logs.encode()).hexdigest()[:16], servers_folder(), 0, None
    try:
        locks.mkdir(parents=True, exist_ok=True)
        while held is None:
            number += 1
            lock = locks / f"logs-{name}-{number}.lock"
            held = try_lock(lock)
    except (OSError, UnavailableError):
        yield options
        return
    try:
        yield replace(options, log_number=number)
    finally:
        unlock(held, lock)


def place_of(
    build: DeployedBuild, options: DeployOptions, *, container: bool = False, detach: bool = False
) -> ServingPlace:
    """Returns the place to serve a build: this machine, or a container, which `detach` leaves running.

    Raises `UnavailableError` if nothing there could serve it, or its server does not take such keys.
    """
    deployment, launch = _deployment_of(build, options)
    if container:
        place = container_place(build, deployment, launch, detach=detach)
    else:
        place = local_place(build, deployment, launch, options.python)
    doubt = None if options.plain else build.doubt
    rollout = options.rollout or rollout_file(build.folder.resolve())
    left = left_rollout(rollout, build.loaded.path) if build.is_for_triton else None
    more = filter(None, (deployment.exposure, doubt, left))
    return replace(place, warnings=(*place.warnings, *more))


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
        launch, kind, name = models, models.kind, models.launch.served_model_name
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


_END_S = 5.0


def local_place(
    build: DeployedBuild,
    deployment: Deployment,
    launch: TritonLaunch | EngineServerLaunch,
    python: Path | None,
) -> ServingPlace:
    """Returns this machine as the place to serve a build.

    Triton is that of NVIDIA's image, if this is one, or the installed one. Another engine's server is that of
    `python`, or of PATH. Raises `UnavailableError` if there is none.
    """
    serve: Callable[[], AbstractContextManager[Callable[[], RunningServer]]]
    if isinstance(launch, EngineServerLaunch):
        command = launch.installed(deployment, python)
        serve = partial(serve_engine_server, deployment, command, launch.hub_variables)
        commands = partial(local_commands, deployment, lambda _: command)
        warning = difference(launch.launch, command.argv)
    elif launch.models:
        raise UnavailableError(build.folder, "needs NVIDIA's image of Triton with vLLM", "--container")
    else:
        triton, gpus = find_triton(), len(find_gpus())
        serve = partial(serve_triton, deployment, launch, triton, gpus)
        commands = partial(local_commands, deployment, partial(launch.local, triton=triton, gpus=gpus))
        warning = triton.problem if deployment.is_public else None

    def prepare(watch: Progress) -> None:
        check_open_files()
        if isinstance(launch, EngineServerLaunch):
            launch.prepare(deployment.build)
            check_free(deployment.host, deployment.all_ports)
        else:
            build.check(this_runtime())
            wait_for_ports(deployment, watch)

    return ServingPlace(deployment, prepare, serve, commands, warnings=(warning,) if warning else ())


def wait_for_ports(deployment: Deployment, watch: Progress) -> None:
    """Waits while the ports are taken, since the server of a killed deploy may still be ending.

    It waits as long as Triton may take to end. Raises `UnavailableError` for ports that are taken then.
    """
    deadline = time.monotonic() + deployment.grace_s + _END_S
    host, ports = deployment.host, deployment.all_ports
    if is_any_abandoned() and not are_free(host, ports):
        with watch("wait for a server that is ending", None):
            while not are_free(host, ports) and time.monotonic() < deadline:
                time.sleep(0.1)
    check_free(host, ports)


class _Last:
    """Runs at most one child at a time."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._child: ChildProcess | None = None

    def start(
        self, command: LaunchCommand, environment: Mapping[str, str], orphaned: signal.Signals
    ) -> ChildProcess:
        """Starts a server, after ending the last one."""
        self.end()
        with self._deployment.log.open("ab") as log:
            self._child = ChildProcess(
                command.argv,
                log,
                folder=self._deployment.build,
                environment={**environment, **command.environment, **command.secrets},
                orphaned=orphaned,
            )
        return self._child

    def end(self) -> None:
        """Ends the server, if there is one, with every process that it has started."""
        if self._child:
            self._child.kill()
            self._child = None


@contextmanager
def serve_engine_server(
    deployment: Deployment, command: LaunchCommand, hub: Mapping[str, str]
) -> Iterator[Callable[[], RunningServer]]:
    """Yields a function that starts another engine's server; each call first ends the last one.

    It gets this process's environment without apparent secrets, and the variables for the Hub. The last
    server is ended at the end of the block.
    """
    begin_log(deployment.log)
    last = _Last(deployment)

    def start() -> RunningServer:
        environment = {**without_secrets(os.environ), **hub}
        return RunningServer(deployment, last.start(command, environment, signal.SIGTERM))

    try:
        yield start
    finally:
        last.end()


@contextmanager
def serve_triton(
    deployment: Deployment, launch: TritonLaunch, triton: TritonInstall, gpus: int
) -> Iterator[Callable[[], TritonServer]]:
    """Yields a function that starts a Triton; each call first ends the last one.

    It is behind a front, on ports of its own each time. The last one is ended at the end of the block. Raises
    `UnavailableError` before anything starts if a path is not allowed, or engines need mpirun and it is
    missing.
    """
    for path in filter(None, (deployment.repository, triton.backends)):
        check_path(path)
    command = launch.local(deployment, triton, gpus).argv[0]
    if shutil.which(command, path=triton.environment().get("PATH")) is None:
        problem = "is not on PATH, but engines of several ranks need it"
        raise UnavailableError(command, problem, "NVIDIA's image has it: trtspec deploy --container")
    remove_abandoned()
    begin_log(deployment.log)
    with ExitStack() as stack:
        gates = [*_gates(deployment, stack)]
        stopping = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trtspec-")), "stopping")
        regions, reserved, last = Regions(), ExitStack(), _Last(deployment)
        for ends in (regions.close, reserved.close, last.end):
            stack.callback(ends)
        # Triton would keep its ports and wait for requests and connections, although its front is gone. Its
        # stubs end with it. The processes of mpirun end only if mpirun is told to stop.
        orphaned = signal.SIGKILL if launch.ranks == 1 else signal.SIGTERM

        def start() -> TritonServer:
            last.end()
            # A killed server leaves the memory that it shared with its processes.
            regions.remove()
            reserved.close()
            ports = Ports(*reserved.enter_context(reserved_ports(3)))
            internal = replace(deployment, host=LOOPBACK, ports=ports)
            started = launch.local(internal, triton, gpus, regions.prefix)
            child = last.start(started, {**triton.environment(), STOPPING: str(stopping)}, orphaned)
            drain = partial(stopping.write_text, f"{deployment.grace_s}")
            return TritonServer(internal, child, drain, *gates, stubs=Stubs(child.pid))

        yield start


def _gates(deployment: Deployment, stack: ExitStack) -> Iterator[RequestGate]:
    """Opens the processes in front of a Triton on this machine: its front, and OpenAI's API if it is
    served."""
    api_url = URL(deployment.api_url).origin() if deployment.api_url else None
    front = Front(deployment.origins, deployment.ports, deployment.model_name, deployment.naming, api_url)
    front.start()
    stack.callback(front.close)
    yield front
    if deployment.ports.openai:
        api = OpenAi(deployment, LOOPBACK)
        api.start()
        stack.callback(api.close)
        yield api
