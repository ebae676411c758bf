"""Serves in a container of docker or podman, which is found again by its labels."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from trtspec.base.child import ChildProcess
from trtspec.base.errors import UnavailableError
from trtspec.base.process_limits import check_open_files
from trtspec.base.progress import Progress
from trtspec.client.local_server import forget
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import TRITON, Deployment, kind_of
from trtspec.deployment.place import Launch, ServingPlace
from trtspec.deployment.preview import compose_file, container_commands, published
from trtspec.deployment.server import RunningServer, begin_log
from trtspec.deployment.triton.install import check_path
from trtspec.deployment.triton.launch import stopping_file
from trtspec.deployment.triton.server import RequestGate, TritonServer
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.ports import Ports, check_free, listens
from trtspec.pipeline.containers.container import Container, Health, Mount, name_for
from trtspec.pipeline.containers.engine import ContainerEngine, find_engine
from trtspec.pipeline.containers.oddities import logout
from trtspec.pipeline.containers.program import Program
from trtspec.pipeline.containers.state import State, ensure_image, find_state, find_states, remove
from trtspec.pipeline.machine.devices import container_gpus, find_gpus

LABEL = "trtspec.deployment"
"""The label of every container that serves; others begin with it."""

# The label that only containers of another engine's server have: the backend.
_VENDOR = f"{LABEL}.vendor"
_RESTART = "on-failure:5"
_LOOK_S = 5.0
_LAST_WORDS_S = 2.0
# A command that fails at once is not restarted earlier.
_AGAIN_S = 5.0
# The check runs in Python, which all images have.
_READY = "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}{}\", timeout=4)'"
_END_S = 10.0


def container_place(
    build: DeployedBuild, deployment: Deployment, launch: Launch, *, detach: bool
) -> ServingPlace:
    """Returns a container with the recipe's GPUs as the place to serve a build; `detach` leaves it running.

    Whether docker or podman answers is a question of `prepare`.
    """
    engine, image, hardware = find_engine(), build.image, build.recipe.hardware
    gpus: tuple[str, ...] = ()
    if hardware.gpu != "none":
        gpus = container_gpus(find_gpus(), hardware.count, engine.devices)
    make = partial(container_of, launch=launch, image=image, gpus=gpus)
    made, how = make(deployment), run_options(restarts=detach)
    ends = logout(engine) if detach and engine.ends_at_logout else None

    def prepare(watch: Progress) -> None:
        check_open_files()
        launch.check_image(build)
        if problem := engine.obstacle_to(gpus=bool(gpus)):
            raise problem
        ensure_image(engine.program, image, watch)

    return ServingPlace(
        deployment,
        prepare,
        partial(serve_container, deployment, launch, made, engine, detach=detach),
        partial(container_commands, deployment, make, engine, how),
        partial(compose_file, deployment, make, engine, build),
        (f"{ends.problem}; {ends.repair} keeps them running",) if ends else (),
        made.name if detach else None,
    )


def container_of(deployment: Deployment, launch: Launch, image: str, gpus: tuple[str, ...]) -> Container:
    """Returns the container of a deployment; the build and the models are read-only in it; pure.

    `gpus` are those of `Container`. The entry point of another engine's image is not used: vLLM's is `vllm
    serve`, and others have none.
    """
    command, build = launch.in_container(deployment, len(gpus)), deployment.build
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
        publish=published(deployment, *deployment.own_ports.values()),
        health=Health(_READY.format(deployment.asked_port, deployment.kind.ready[0]), deployment.start_s),
    )
    return launch.mounted(made)


@contextmanager
def serve_container(
    deployment: Deployment, launch: Launch, made: Container, engine: ContainerEngine, *, detach: bool
) -> Iterator[Callable[[], RunningServer]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and is started again when it fails. Raises `UnavailableError` before anything starts if a
    port is taken, Triton cannot serve from the path, the same build is served already, or a foreign container
    has the name. OpenAI's API in front of Triton is a process of this machine, which ends with the container.
    """
    from trtspec.deployment.openai import OpenAi  # needs the extra for serving here

    if deployment.is_triton:
        check_path(deployment.repository)
    remove_last(engine.program, made.name, deployment.build)
    check_free(deployment.host, deployment.all_ports)
    begin_log(deployment.log)
    api = OpenAi(deployment, deployment.url_host) if deployment.has_api_process else None
    secrets = launch.in_container(deployment, len(made.gpus)).secrets
    line = run_words(made, engine, detach=detach)[1:]
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


def run_options(*, restarts: bool) -> tuple[str, ...]:
    """Returns the options of a container's start; with `restarts` the engine restarts it when it fails."""
    return ("--detach", *(("--restart", _RESTART) if restarts else ()))


def run_words(made: Container, engine: ContainerEngine, *, detach: bool) -> tuple[str, ...]:
    """Returns the arguments of the command that starts the container; pure.

    A detached container is restarted when it fails, which podman must know from the start.
    """
    restarts = detach and not engine.program.dialect.restarts_later
    return made.run(engine, *run_options(restarts=restarts))


def labels_of(deployment: Deployment) -> dict[str, str]:
    """Returns the labels that describe a deployment; pure."""
    ports = deployment.ports
    labels = {
        LABEL: deployment.name,
        f"{LABEL}.build": str(deployment.build),
        f"{LABEL}.model": deployment.model_name,
        f"{LABEL}.host": deployment.host,
    }
    if deployment.is_triton:
        labels[f"{LABEL}.ports"] = f"{ports.http},{ports.grpc},{ports.metrics}"
    labels[f"{LABEL}.grace"] = f"{deployment.grace_s:g}"
    if ports.openai:
        labels[f"{LABEL}.openai"] = str(ports.openai)
    if not deployment.is_triton:
        return {**labels, _VENDOR: deployment.kind.name}
    if deployment.api_keys:
        labels[f"{LABEL}.api_keys"] = str(deployment.api_keys.resolve())
    if ports.openai:
        labels[f"{LABEL}.card"] = deployment.card.to_json()
    # The key is among the server's options too, and those who may read them may do anything.
    return {**labels, f"{LABEL}.key": deployment.key}


def deployment_of(labels: Mapping[str, str]) -> Deployment:
    """Returns the deployment that `labels_of` describes."""
    found = {name.removeprefix(f"{LABEL}."): value for name, value in labels.items()}
    openai = int(found["openai"]) if "openai" in found else None
    own = map(int, found["ports"].split(",")) if "ports" in found else ()
    return Deployment(
        name=labels[LABEL],
        build=Path(found["build"]),
        model_name=found["model"],
        kind=kind_of(labels[_VENDOR]) if _VENDOR in labels else TRITON,
        host=found["host"],
        ports=replace(Ports(*own), openai=openai),
        grace_s=float(found["grace"]),
        api_keys=Path(found["api_keys"]) if "api_keys" in found else None,
        card=ModelCard.from_json(found["card"]) if "card" in found else ModelCard(),
        key=found.get("key", ""),
    )


def remove_last(program: Program, name: str, build: Path) -> None:
    """Removes the container of an earlier run; raises `UnavailableError` if it still runs, or trtspec did not
    start it."""
    state = find_state(program, name)
    if state is None:
        return
    if state.is_running:
        raise UnavailableError(name, "is running already", f"trtspec deploy stop {name}")
    if state.labels.get(f"{LABEL}.build") != str(build):
        raise UnavailableError(
            name, "a container of this name was not started by trtspec", f"{program.name} rename it"
        )
    remove(program, state.id)


class ContainerLog:
    """Appends a container's whole output to `file`, while this process runs."""

    def __init__(self, program: Program, container_id: str, file: Path) -> None:
        self._program, self._id, self._file = program, container_id, file
        self._process = self._start()

    @property
    def is_at_work(self) -> bool:
        """True while it waits for more output; it ends with the container, and when the daemon restarts."""
        if self._process.poll() is not None:
            return False
        self._seen = time.time()
        return True

    def go_on(self) -> None:
        """Restarts it if it has ended; lines of that moment may appear twice."""
        if not self.is_at_work and time.monotonic() > self._begin + _AGAIN_S:
            self._process = self._start("--since", f"{self._seen:.3f}")

    def wait(self, seconds: float) -> None:
        """Waits for its end, which is that of the container."""
        self._process.wait(seconds)

    def close(self) -> None:
        self._process.kill()

    def _start(self, *since: str) -> ChildProcess:
        self._begin, self._seen = time.monotonic(), time.time()
        with self._file.open("ab") as file:
            return self._program.start(("logs", "--follow", *since, self._id), file)


class ContainerProcess:
    """The first process of a container; `log` is the copy of its output, if there is one."""

    def __init__(self, program: Program, container_id: str, log: ContainerLog | None = None) -> None:
        self._program, self._id, self._log = program, container_id, log
        self._next_look = 0.0

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        if self._log and self._log.is_at_work and time.monotonic() < self._next_look:
            return None
        # A copy that starts after the container's end (podman's, up to 4.3) waits for ever.
        self._next_look = time.monotonic() + _LOOK_S
        try:
            state = find_state(self._program, self._id)
        except UnavailableError:
            # A daemon that does not answer leaves its containers running.
            return None
        # Podman may have restarted it before trtspec detached; then the end of the run before is unknown.
        is_another = bool(self._log and state and state.restarts)
        if state and state.is_running and not is_another:
            if self._log:
                self._log.go_on()
            return None
        if self._log:
            self._log.wait(_LAST_WORDS_S)
        if state is None:
            return -signal.SIGKILL
        return 1 if state.is_running else state.status

    def run(self, line: str) -> None:
        """Runs a shell command in the container."""
        self._program.run_if_there("exec", self._id, "sh", "-c", line)

    def stop(self, seconds: float) -> None:
        """Tells it to stop, and waits this many seconds for its end."""
        self._program.run_if_there("stop", "-t", f"{seconds:.0f}", self._id)


@dataclass(slots=True)
class OneContainer:
    """Runs at most one container at a time, whose output goes to `log` while this process runs."""

    program: Program
    words: tuple[str, ...]
    """The words behind the program's name."""
    name: str
    build: Path
    log: Path
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables that `words` name without a value."""
    container_id: str | None = None
    copy: ContainerLog | None = None

    def start(self) -> ContainerProcess:
        """Starts the container, after removing the last one, and returns its process."""
        self.end()
        try:
            self.container_id = self.program.run(*self.words, secrets=self.secrets).strip()
        except UnavailableError:
            # A container that could not start has been created nevertheless.
            with suppress(UnavailableError):
                remove_last(self.program, self.name, self.build)
            raise
        except BaseException:
            # It may run already, under the name that was free: the command ended before it told the id.
            with suppress(UnavailableError):
                remove(self.program, self.name)
            raise
        self.copy = ContainerLog(self.program, self.container_id, self.log)
        return ContainerProcess(self.program, self.container_id, self.copy)

    def leave(self) -> str:
        """Leaves the container running, started again when it fails, and returns its id."""
        container = self._unfollowed()
        if self.program.dialect.restarts_later:
            self.program.run("update", "--restart", _RESTART, container)
        return container

    def end(self) -> None:
        """Ends and removes the container, if there is one."""
        if self.container_id:
            remove(self.program, self._unfollowed())
            self.container_id = None

    def _unfollowed(self) -> str:
        if self.copy:
            self.copy.close()
        assert self.container_id
        return self.container_id


@dataclass(frozen=True, slots=True)
class DeployedContainer:
    """A server in a container: the deployment from its labels, and the container's state."""

    deployment: Deployment
    state: State

    @property
    def condition(self) -> str:
        """The condition in words: starting, ready, unhealthy, restarting, or how it ended."""
        state = self.state
        if state.is_restarting:
            return "restarting"
        if not state.is_running:
            return f"ended by signal {-state.status}" if state.status < 0 else f"ended with {state.status}"
        if self.deployment.is_ready():
            return "ready"
        return "unhealthy" if state.health == "unhealthy" else "starting"

    @property
    def api_flaw(self) -> str:
        """The problem of OpenAI's API in front of Triton, such as "not running"; empty for none.

        It is a process of this machine, which nothing restarts after a reboot. `deploy` checks it only as
        long as `deploy` itself runs.
        """
        deployment, port = self.deployment, self.deployment.ports.openai
        if not deployment.is_triton or port is None or not self.state.is_running:
            return ""
        if not listens(deployment.client_host, port):
            return "not running"
        return "" if deployment.ask(port, "/health")[0] else "not answering"


def find_deployed(program: Program) -> list[DeployedContainer]:
    """Returns the servers, including ended ones; raises `UnavailableError` if docker or podman does not
    answer."""
    return [DeployedContainer(deployment_of(state.labels), state) for state in find_states(program, LABEL)]


def stop(program: Program, deployed: DeployedContainer) -> None:
    """Stops a server when its requests have ended or their grace period is over, and removes its
    container."""
    state, deployment = deployed.state, deployed.deployment
    if state.is_running and not state.is_restarting:
        running_in(ContainerProcess(program, state.id), deployment).stop()
    remove(program, state.id)
    forget(state.name)
    if deployment.is_triton and deployment.ports.openai:
        _wait_for_end(deployment.client_host, deployment.ports.openai)


def running_in(process: ContainerProcess, deployment: Deployment, *gates: RequestGate) -> RunningServer:
    """Returns the server of a container, with the processes in front of it."""
    if not deployment.is_triton:
        return RunningServer(deployment, process)
    tell = f"echo {deployment.grace_s} > {stopping_file(deployment)}"
    return TritonServer(deployment, process, lambda: process.run(tell), *gates)


def _wait_for_end(host: str, port: int) -> None:
    """Waits until the port is free: OpenAI's API ends once it finds its container gone."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and listens(host, port):
        time.sleep(0.1)
