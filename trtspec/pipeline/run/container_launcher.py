"""Runs commands of TensorRT-LLM in NVIDIA's image, in containers of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import IO

from trtspec.base.causes import Cause
from trtspec.base.child import ChildProcess
from trtspec.pipeline.containers.container import Container, Mount
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.pipeline.containers.program import Program, signalled
from trtspec.pipeline.containers.state import remove


@dataclass(frozen=True, slots=True)
class ContainerLauncher:
    """Starts commands in a container of an image."""

    image: str
    name: str
    """The same each time, so that a container of an earlier run is found and removed."""
    folders: tuple[Path, ...]
    """The folders that a build reads and writes."""
    gpus: tuple[str, ...]
    """Those of `Container`."""
    engine: ContainerEngine

    @property
    def causes(self) -> tuple[Cause, ...]:
        return self.engine.program.dialect.causes

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        mounts = tuple(Mount(folder) for folder in self.folders)
        container = Container(self.image, self.name, argv, folder, mounts, self.gpus)
        return container.run(self.engine, "--rm")

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> _Attached:
        program = self.engine.program
        remove(program, self.name)
        return _Attached(program, self.name, program.start(self.command(argv, folder)[1:], output))


class _Attached:
    """A container, and the process of `docker run`, or `podman run`, that passes its output on."""

    def __init__(self, program: Program, name: str, client: ChildProcess) -> None:
        self._program, self._name, self._client = program, name, client

    def wait(self, seconds: float) -> int | None:
        status = self._client.wait(seconds)
        return None if status is None else signalled(status)

    def kill(self) -> None:
        # A container outlives the client that started it.
        self._client.kill()
        remove(self._program, self._name)
