"""Starts the commands of TensorRT-LLM on this machine, or in a container: all that differs between them."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol


class Running(Protocol):
    """A command that was started."""

    def wait(self, seconds: float) -> int | None:
        """Its exit status, negative for a signal; None if it has not ended after so long."""
        ...

    def kill(self) -> None:
        """Ends it at once, with every process that it has started; harmless when it has ended."""
        ...


class Launcher(Protocol):
    """What can start a command of TensorRT-LLM; `argv[0]` is the command's plain name."""

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        """What a shell on this machine does the same with."""
        ...

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> Running:
        """Starts it in `folder` with stdout and stderr in `output`."""
        ...


@dataclass(frozen=True, slots=True)
class LocalLauncher:
    """This machine: where the command is, and the UUIDs of the GPUs that it may use; empty for all."""

    executable: str
    gpus: tuple[str, ...] = ()

    def command(self, argv: tuple[str, ...], folder: Path) -> tuple[str, ...]:
        return argv

    def start(self, argv: tuple[str, ...], output: IO[bytes], folder: Path) -> Running:
        visible = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)} if self.gpus else {}
        process = subprocess.Popen(  # noqa: S603
            [self.executable, *argv[1:]],
            cwd=folder,
            env={**os.environ, **visible},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        return _Process(process)


class _Process:
    """A process that leads a session of its own."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        # Its workers are in its group also when it has ended before them.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
