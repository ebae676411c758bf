"""Runs commands of TensorRT-LLM in NVIDIA's image, on this machine's docker."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trtspec.docker import command
from trtspec.docker.container import Container, Mount
from trtspec.docker.state import remove


@dataclass(frozen=True, slots=True)
class ContainerLauncher:
    """Starts commands in a container of `image` with the folders that a build reads and writes.

    `name` is the same each time, so that a container of an earlier run is found and removed. `gpus` and
    `user` are those of `Container`.
    """

    image: str
    name: str
    folders: tuple[Path, ...]
    gpus: tuple[str, ...]
    user: str | None

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        mounts = tuple(Mount(folder) for folder in self.folders)
        container = Container(self.image, self.name, argv, folder, mounts, self.gpus, self.user)
        return container.run("--rm")

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> _Attached:
        remove(self.name)
        return _Attached(self.name, command.start(self.command(argv, folder)[1:], output))


class _Attached:
    """A container, and the process of `docker run` that passes its output on."""

    def __init__(self, name: str, client: subprocess.Popen[bytes]) -> None:
        self._name, self._client = name, client

    def wait(self, seconds: float) -> int | None:
        try:
            status = self._client.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        return command.signalled(status)

    def kill(self) -> None:
        # A container outlives the client that started it.
        self._client.kill()
        self._client.wait()
        remove(self._name)
