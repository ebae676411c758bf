"""Starts the commands of TensorRT-LLM: what a launcher must do, and the launcher for this machine.

The launcher for a container is in `container_launcher.py`.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

from trtspec.base.causes import Cause
from trtspec.base.child import ChildProcess


class RunningCommand(Protocol):
    """A command that was started."""

    def wait(self, seconds: float) -> int | None:
        """Returns its exit status, negative for a signal, or None if it has not ended after `seconds`."""
        ...

    def kill(self) -> None:
        """Ends it at once, with every process that it has started; harmless if it has ended already."""
        ...


class Launcher(Protocol):
    """Starts commands of TensorRT-LLM; `argv[0]` is the command's plain name."""

    @property
    def causes(self) -> tuple[Cause, ...]:
        """The known causes of failures of the launcher, not of the command."""
        ...

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """The command line with which a shell on this machine would do the same."""
        ...

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> RunningCommand:
        """Starts it in `folder` with stdout and stderr in `output`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """Starts commands on this machine."""

    executable: str
    """The path of the command."""
    gpus: tuple[str, ...] = ()
    """The UUIDs of the GPUs that the command may use; empty for all."""
    causes: tuple[Cause, ...] = ()

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        return argv

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> RunningCommand:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        return ChildProcess(
            [self.executable, *argv[1:]],
            output,
            folder=folder,
            environment={**os.environ, **visible},
            # It inherits the lock of the build directory; the other descriptors are closed by themselves.
            keeps_all=True,
        )
