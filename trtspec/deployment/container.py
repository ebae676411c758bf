"""Labels, runs, follows, detaches from and removes one serving container of docker or podman."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.base.child import ChildProcess
from trtspec.base.errors import UnavailableError
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server_kind import TRITON, kind_of
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.ports import Ports
from trtspec.pipeline.containers.container import Container
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.pipeline.containers.program import Program
from trtspec.pipeline.containers.state import find_state, remove

LABEL = "trtspec.deployment"
"""The label of every container that serves; others begin with it."""

# The label that only containers of another engine's server have: the backend.
_VENDOR = f"{LABEL}.vendor"
_RESTART = "on-failure:5"
_LOOK_S = 5.0
_LAST_WORDS_S = 2.0
# A command that fails at once is not restarted earlier.
_AGAIN_S = 5.0


def words(made: Container, engine: ContainerEngine, *, detach: bool) -> tuple[str, ...]:
    """Returns the arguments of the command that starts the container; pure.

    A detached container is restarted when it fails, which podman must know from the start.
    """
    restart = detach and not engine.program.dialect.restarts_later
    return made.run(engine, "--detach", *(("--restart", _RESTART) if restart else ()))


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
