"""A container, as the words of `docker run` or `podman run`; pure."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
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

    def words(self) -> list[str]:
        often = ["--health-interval", "10s", "--health-timeout", "5s", "--health-retries", "3"]
        return ["--health-cmd", self.command, *often, "--health-start-period", f"{self.start_s:.0f}s"]


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
        words: list[str] = [engine.program.name, "run", *how]
        words += ["--init", "--pull", "never", "--name", self.name]
        for key, value in self.labels.items():
            words += ["--label", f"{key}={value}"]
        words += self._devices(engine)
        # Triton needs no capabilities, nor do MPI and NCCL between processes of one user. Logs are bounded so
        # that they do not fill the disk.
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        if engine.labels:
            # NVIDIA's way too: a label that lets containers in would have to be written on every file of a
            # build that may be in a home, and the devices of GPUs have another all the same.
            words += ["--security-opt", "label=disable"]
        words += engine.program.dialect.log
        # NVIDIA starts its images of TensorRT-LLM with these limits.
        words += ["--shm-size", SHARED_MEMORY]
        if engine.memlock is not None:
            words += ["--ulimit", f"memlock={engine.memlock}"]
        words += ["--ulimit", "stack=67108864"]
        if engine.may_remap:
            words += ["--userns", "host"]
        words += ["--user", engine.user]
        # The image need not know this user, and Python asks for the name and the home of whoever runs it.
        for key, value in {**self.environment, "HOME": "/tmp", "USER": "trtspec"}.items():  # noqa: S108
            words += ["--env", f"{key}={value}"]
        for name in self.secrets:
            words += ["--env", name]
        for mount in self.mounts:
            fields = ["type=bind", f"src={mount.folder}", f"dst={mount.folder}"]
            words += ["--mount", _csv([*fields, "readonly"] if mount.read_only else fields)]
        if self.health and engine.checks_health:
            words += self.health.words()
        for address in self.publish:
            words += ["--publish", address]
        if self.entrypoint is not None:
            words += ["--entrypoint", self.entrypoint]
        return (*words, "--workdir", str(self.folder), self.image, *self.command)

    def _devices(self, engine: ContainerEngine) -> list[str]:
        if not self.gpus:
            return []
        if not engine.program.dialect.takes_cdi:
            return ["--gpus", _csv([f"device={','.join(self.gpus)}"])]
        return [word for gpu in self.gpus for word in ("--device", f"{KIND}={gpu}")]


def name_for(what: str, folder: Path) -> str:
    """Returns the same name for the same folder, so that the container of an earlier run is found."""
    return f"trtspec-{what}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _csv(fields: Sequence[str]) -> str:
    """Returns the fields as one line of CSV, which is how both programs read devices and mounts."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()
