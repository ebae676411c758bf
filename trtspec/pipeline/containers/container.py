"""A container, as the words of `docker run` or `podman run`; pure."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.pipeline.containers.engine import KIND, ContainerEngine

SHARED_MEMORY = "8g"
"""The size of /dev/shm, which NCCL and Triton's Python backend use; the usual 64 MB are too little."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine, at the same path in the container."""

    folder: Path
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """A command that is run in the container every ten seconds."""

    command: str
    start_s: float
    """The number of seconds at the start in which failures do not count."""

    @property
    def often(self) -> dict[str, str]:
        """The time between two runs, and what counts as a failure, by the names of the options."""
        return {"interval": "10s", "timeout": "5s", "retries": "3", "start-period": f"{self.start_s:.0f}s"}


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs a command as this user."""

    image: str
    name: str
    command: tuple[str, ...]
    folder: Path
    """The working directory."""
    mounts: tuple[Mount, ...]
    gpus: tuple[str, ...] = ()
    """The names by which the engine knows the GPUs; empty for no GPU."""
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    publish: tuple[str, ...] = ()
    """The values of the option `--publish`, "host:port:port"."""
    health: Health | None = None
    secrets: tuple[str, ...] = ()
    """The names of variables that get the values that they have where the line is run. The command line does
    not show these values.
    """
    entrypoint: str | None = None
    """Stands in place of the image's own."""

    def run(self, engine: ContainerEngine, *how: str) -> tuple[str, ...]:
        """Returns the words of the line that runs it, the program first; `how` are further options."""
        words = (word for option in self.options(engine) for word in option)
        return (engine.program.name, "run", *how, *words, self.image, *self.command)

    def options(self, engine: ContainerEngine) -> Iterator[tuple[str, ...]]:
        """Yields the options of that line, each with its value, if it has one."""
        yield ("--init",)
        yield "--pull", "never"
        yield "--name", self.name
        for key, value in self.labels.items():
            yield "--label", f"{key}={value}"
        yield from self._devices(engine)
        # Triton needs no capabilities, nor do MPI and NCCL between processes of one user. Logs are bounded so
        # that they do not fill the disk.
        yield "--cap-drop", "ALL"
        yield "--security-opt", "no-new-privileges"
        if engine.labels:
            # NVIDIA's way too: a label that lets containers in would have to be written on every file of a
            # build that may be in a home, and the devices of GPUs have another all the same.
            yield "--security-opt", "label=disable"
        log = engine.program.dialect.log
        yield from zip(log[::2], log[1::2], strict=True)
        # NVIDIA starts its images of TensorRT-LLM with these limits.
        yield "--shm-size", SHARED_MEMORY
        if engine.memlock is not None:
            yield "--ulimit", f"memlock={engine.memlock}"
        yield "--ulimit", "stack=67108864"
        if engine.may_remap:
            yield "--userns", "host"
        yield "--user", engine.user
        # The image need not know this user, and Python asks for the name and the home of whoever runs it.
        for key, value in {**self.environment, "HOME": "/tmp", "USER": "trtspec"}.items():  # noqa: S108
            yield "--env", f"{key}={value}"
        for name in self.secrets:
            yield "--env", name
        for mount in self.mounts:
            fields = ["type=bind", f"src={mount.folder}", f"dst={mount.folder}"]
            yield "--mount", _csv([*fields, "readonly"] if mount.read_only else fields)
        if self.health and engine.checks_health:
            yield "--health-cmd", self.health.command
            yield from ((f"--health-{name}", value) for name, value in self.health.often.items())
        for address in self.publish:
            yield "--publish", address
        if self.entrypoint is not None:
            yield "--entrypoint", self.entrypoint
        yield "--workdir", str(self.folder)

    def _devices(self, engine: ContainerEngine) -> Iterator[tuple[str, str]]:
        if self.gpus and not engine.program.dialect.takes_cdi:
            yield "--gpus", _csv([f"device={','.join(self.gpus)}"])
        elif self.gpus:
            yield from (("--device", f"{KIND}={gpu}") for gpu in self.gpus)


def name_for(what: str, folder: Path) -> str:
    """Returns the same name for the same folder, so that the container of an earlier run is found."""
    return f"trtspec-{what}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _csv(fields: Sequence[str]) -> str:
    """Returns the fields as one line of CSV, which is how both programs read devices and mounts."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()
