"""A container, as the words of `docker run`; pure."""

from __future__ import annotations

import csv
import hashlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.docker.command import DOCKER

SHARED_MEMORY = "8g"
"""The size of /dev/shm, which NCCL and Triton's Python backend use; docker's 64 MB are too little."""


@dataclass(frozen=True, slots=True)
class Mount:
    """A folder of this machine, at the same path in the container."""

    folder: Path
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Health:
    """A command that docker runs in the container every ten seconds.

    Failures in the first `start_s` seconds do not count.
    """

    command: str
    start_s: float

    def words(self) -> list[str]:
        often = ["--health-interval", "10s", "--health-timeout", "5s", "--health-retries", "3"]
        return ["--health-cmd", self.command, *often, "--health-start-period", f"{self.start_s:.0f}s"]


@dataclass(frozen=True, slots=True)
class Container:
    """A container that runs `command` in `image`, with `folder` as working directory.

    `gpus` are UUIDs or numbers of GPUs; it is empty for no GPU. `user` is "uid:gid", None for the image's
    own, which is root. `publish` has the values of docker's option of this name, "host:port:port".
    """

    image: str
    name: str
    command: tuple[str, ...]
    folder: Path
    mounts: tuple[Mount, ...]
    gpus: tuple[str, ...] = ()
    user: str | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    publish: tuple[str, ...] = ()
    health: Health | None = None

    def run(self, *how: str) -> tuple[str, ...]:
        """Returns the words of the line that runs it; `how` are further options of `docker run`."""
        words: list[str] = [DOCKER, "run", *how, "--init", "--pull", "never", "--name", self.name]
        for key, value in self.labels.items():
            words += ["--label", f"{key}={value}"]
        if self.gpus:
            words += ["--gpus", _csv([f"device={','.join(self.gpus)}"])]
        # Triton needs no capabilities, nor do MPI and NCCL between processes of one user. Logs are bounded so
        # that they do not fill the disk.
        words += ["--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        words += ["--log-driver", "json-file", "--log-opt", "max-size=50m", "--log-opt", "max-file=3"]
        # NVIDIA starts its images of TensorRT-LLM with these limits.
        words += ["--shm-size", SHARED_MEMORY, "--ulimit", "memlock=-1", "--ulimit", "stack=67108864"]
        environment = dict(self.environment)
        if self.user:
            words += ["--user", self.user]
            # The image does not know this user, and Python asks for the name and the home of whoever runs it.
            environment |= {"HOME": "/tmp", "USER": "trtspec"}  # noqa: S108
        for key, value in environment.items():
            words += ["--env", f"{key}={value}"]
        for mount in self.mounts:
            fields = ["type=bind", f"src={mount.folder}", f"dst={mount.folder}"]
            words += ["--mount", _csv([*fields, "readonly"] if mount.read_only else fields)]
        if self.health:
            words += self.health.words()
        for address in self.publish:
            words += ["--publish", address]
        return (*words, "--workdir", str(self.folder), self.image, *self.command)


def name_for(what: str, folder: Path) -> str:
    """Returns a name that is the same for the same folder, so that what an earlier run left is found."""
    return f"trtspec-{what}-{hashlib.sha256(str(folder).encode()).hexdigest()[:8]}"


def _csv(fields: Sequence[str]) -> str:
    """Returns the fields as one line of CSV, which is how docker reads devices and mounts."""
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(fields)
    return line.getvalue()
