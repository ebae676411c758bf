"""A Triton server in a container of NVIDIA's image."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass

from trtspec.client_bounds import MAX_BODY
from trtspec.containers.container import Container, Health, Mount, name_for
from trtspec.containers.engine import ContainerEngine
from trtspec.containers.program import Program
from trtspec.containers.state import find_state, remove
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.launch import SERVER, launch
from trtspec.deploy.openai import OpenAi
from trtspec.deploy.ports import address_of, check_free
from trtspec.deploy.server import Server, check_path
from trtspec.deploy.shared_memory import PREFIX
from trtspec.deploy.tritonserver_options import server_options
from trtspec.errors import UnavailableError
from trtspec.serving.triton.stopping import STOPPING

LABEL = "trtspec.deployment"

_ANY = "0.0.0.0"  # noqa: S104
# Python asks, since the image certainly has it.
_READY = (
    "python3 -c 'import urllib.request as u; u.urlopen(\"http://127.0.0.1:{}/v2/health/ready\", timeout=4)'"
)
_RESTART = "on-failure:5"
_LOOK_S = 5.0
_LAST_WORDS_S = 2.0


def container(deployment: Deployment, image: str, gpus: tuple[str, ...]) -> Container:
    """Returns the container of a deployment, in which the build directory can only be read; pure.

    `gpus` are those of `Container`.
    """
    # The server listens on every address of the container's own network; `publish` says what is seen outside.
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
        publish=tuple(f"{host}:{port}:{port}" for port in (ports.http, ports.grpc, ports.metrics)),
        health=Health(_READY.format(ports.http), deployment.start_s),
    )


def _stopping(name: str) -> str:
    """Returns the path, in the container, of the file that tells the model that the server is to stop."""
    return f"/tmp/{name}-stopping"  # noqa: S108


def words(made: Container, engine: ContainerEngine, *, detach: bool) -> tuple[str, ...]:
    """Returns the words of the line that starts the container; pure.

    One that will be left is started again when it fails, of which podman must know from the start.
    """
    restart = detach and not engine.program.dialect.restarts_later
    return made.run(engine, "--detach", *(("--restart", _RESTART) if restart else ()))


@contextmanager
def serve(
    deployment: Deployment, made: Container, engine: ContainerEngine, *, detach: bool
) -> Iterator[Callable[[], Server]]:
    """Yields a function that starts the container, which may not be ready yet, after removing the last.

    The last container is removed at the end. With `detach` it is left running instead, unless an exception
    ends the block, and is started again when it fails. Raises `UnavailableError` before anything starts
    when a port is taken, a path cannot be served from, the same build is served already, or a container that
    is not ours has the name. OpenAI's API is a process of this machine, which ends with the container.
    """
    check_path(deployment.repository)
    program = engine.program
    _remove_last(program, made.name, deployment)
    check_free(deployment.host, deployment.ports)
    deployment.begin_log()
    api = OpenAi(deployment, deployment.url_host) if deployment.ports.openai else None
    there = _There(deployment, program, words(made, engine, detach=detach)[1:], made.name, api)
    with ExitStack() as stack:
        stack.callback(there.end)
        if api:
            api.start()
            stack.callback(api.close)
        yield there.start
        if detach:
            container = there.left()
            if program.dialect.restarts_later:
                program.run("update", "--restart", _RESTART, container)
            if api:
                api.leave(container)
            stack.pop_all()


def _remove_last(program: Program, name: str, deployment: Deployment) -> None:
    """Removes what an earlier run has left; raises `UnavailableError` where that runs, or is not ours."""
    state = find_state(program, name)
    if state is None:
        return
    if state.is_running:
        raise UnavailableError(name, "is running already", f"trtspec deploy stop {name}")
    if state.labels.get(f"{LABEL}.build") != str(deployment.build):
        raise UnavailableError(name, "a container of this name is not ours", f"{program.name} rename it")
    remove(program, state.id)


@dataclass(slots=True)
class _There:
    """Runs at most one container at a time, whose output goes to the log while this process runs."""

    deployment: Deployment
    program: Program
    words: tuple[str, ...]
    name: str
    api: OpenAi | None
    container_id: str | None = None
    follower: subprocess.Popen[bytes] | None = None

    def start(self) -> Server:
        self.end()
        try:
            self.container_id = self.program.run(*self.words).strip()
        except UnavailableError:
            # One that could not be started was made all the same.
            with suppress(UnavailableError):
                _remove_last(self.program, self.name, self.deployment)
            raise
        with self.deployment.log.open("ab") as log:
            self.follower = self.program.start(("logs", "--follow", self.container_id), log)
        process = ContainerProcess(
            self.program, self.container_id, self.name, self.deployment.grace_s, self.follower
        )
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
            remove(self.program, self.left())
            self.container_id = None


class ContainerProcess:
    """The first process of a container; `follower` passes its log on, and ends with it."""

    def __init__(
        self,
        program: Program,
        container_id: str,
        name: str,
        grace_s: float,
        follower: subprocess.Popen[bytes] | None = None,
    ) -> None:
        self._program, self._id, self._stopping = program, container_id, _stopping(name)
        self._grace_s, self._follower = grace_s, follower
        self._next_look = 0.0

    def poll(self) -> int | None:
        if self._follower and self._follower.poll() is None and time.monotonic() < self._next_look:
            return None
        # A follower that came too late for the end of the container (podman's, to 4.3) waits for ever.
        self._next_look = time.monotonic() + _LOOK_S
        try:
            state = find_state(self._program, self._id)
        except UnavailableError:
            # A daemon that does not answer leaves its containers running.
            return None
        # Podman may have started it again before it was left; how the run before ended is forgotten then.
        is_another = bool(self._follower and state and state.restarts)
        if state and state.is_running and not is_another:
            return None
        if self._follower:
            with suppress(subprocess.TimeoutExpired):
                self._follower.wait(_LAST_WORDS_S)
        if state is None:
            return -signal.SIGKILL
        return 1 if state.is_running else state.status

    def is_stuck(self) -> bool:
        return False

    def drain(self) -> None:
        self._program.run_if_there("exec", self._id, "sh", "-c", f"echo {self._grace_s} > {self._stopping}")

    def stop(self, seconds: float) -> None:
        self._program.run_if_there("stop", "-t", f"{seconds:.0f}", self._id)
