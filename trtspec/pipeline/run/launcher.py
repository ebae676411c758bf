"""Starts the commands of TensorRT-LLM, on this machine or in a container of NVIDIA's image on it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, ClassVar

from trtspec.base.causes import Cause
from trtspec.base.child import ChildProcess
from trtspec.pipeline.containers.container import Container, Mount
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.pipeline.containers.program import Program, signalled
from trtspec.pipeline.containers.state import remove


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Starts commands on this machine; `argv[0]` is a command's plain name."""

    executable: str
    """The path of the command."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs that the command may use; empty for all."""
    causes: ClassVar[tuple[Cause, ...]] = ()
    """The known causes of failures of the launcher, not of the command."""

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """Returns the command line with which a shell on this machine would do the same."""
        return argv

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> ChildProcess:
        """Starts a command in `folder` with stdout and stderr in `output`."""
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return ChildProcess(
            [self.executable, *argv[1:]],
            output,
            folder=folder,
            environment={**os.environ, **visible},
            # It inherits the lock of the build directory; the other descriptors are closed by themselves.
            keeps_all=True,
        )


@dataclass(frozen=True, slots=True)
class ContainerLauncher:
    """Starts commands in a container of an image; `argv[0]` is a command's plain name."""

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
        """The known causes of failures of the launcher, not of the command."""
        return self.engine.program.dialect.causes

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """Returns the command line with which a shell on this machine would do the same."""
        mounts = tuple(Mount(folder) for folder in self.folders)
        container = Container(self.image, self.name, argv, folder, mounts, self.gpus)
        return container.run(self.engine, "--rm")

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> _Attached:
        """Starts a command in `folder` with stdout and stderr in `output`."""
        program = self.engine.program
        remove(program, self.name)
        return _Attached(program, self.name, program.start(self.command(argv, folder)[1:], output))


Launcher = LocalLauncher | ContainerLauncher


class _Attached:
    """A container, and the process of `docker run`, or `podman run`, that passes its output on."""

    def __init__(self, program: Program, name: str, client: ChildProcess) -> None:
        self._program, self._name, self._client = program, name, client

    def wait(self, seconds: float) -> int | None:
        """Returns its exit status, negative for a signal, or None if it has not ended after `seconds`."""
        status = self._client.wait(seconds)
        return None if status is None else signalled(status)

    def kill(self) -> None:
        """Ends it at once; harmless if it has ended already. A container outlives its client."""
        self._client.kill()
        remove(self._program, self._name)
