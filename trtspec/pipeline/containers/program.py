"""Runs the command line of docker or podman; its error message becomes one line."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import IO

from trtspec.base.causes import find_cause
from trtspec.base.child import ChildProcess
from trtspec.base.errors import UnavailableError
from trtspec.pipeline.containers.dialect import DOCKER, PODMAN, Dialect

CHOICE = "TRTSPEC_CONTAINERS"
"""The environment variable that names the program, `docker` or `podman`."""

_TIMEOUT_S = 5


@dataclass(frozen=True, slots=True)
class Program:
    """A command that PATH may lack, and its dialect."""

    name: str
    dialect: Dialect

    def run(self, *words: str, secrets: Mapping[str, str] | None = None) -> str:
        """Returns the output of a command; raises `UnavailableError` when it fails.

        `secrets` are variables of the environment that the words name without a value.
        """
        result = self._run(words, secrets)
        if result.returncode:
            raise self.explained(result.stderr)
        return result.stdout

    def run_if_there(self, *words: str) -> str | None:
        """Returns the output of a command about something that may be gone; None if it is gone.

        Raises `UnavailableError` when the command fails for another reason.
        """
        result = self._run(words)
        if result.returncode == 0:
            return result.stdout
        if self.dialect.gone.search(result.stderr):
            return None
        raise self.explained(result.stderr)

    def start(self, words: tuple[str, ...], output: IO[bytes]) -> ChildProcess:
        """Starts a command that the terminal's Ctrl-C does not reach; its output goes to `output`."""
        return ChildProcess([self.executable(), *words], output)

    @contextmanager
    def lines(self, *words: str) -> Iterator[Iterator[str]]:
        """Yields the lines that a command prints; raises `UnavailableError` when it fails.

        An exception in the block ends the command.
        """
        said: list[str] = []
        with subprocess.Popen(  # noqa: S603
            [self.executable(), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process:
            try:
                yield _heard(process.stdout, said)
            except BaseException:
                process.terminate()
                raise
        if process.returncode:
            raise self.explained("\n".join(said))

    def explained(self, said: str) -> UnavailableError:
        """Returns the error for a command that failed, from its output."""
        if known := find_cause(self.dialect.causes, said):
            return UnavailableError(self.name, *known)
        lines = [line for line in said.splitlines() if line.strip()]
        # Podman says warnings and what it tries first.
        first = next((line for line in lines if line.startswith("Error: ")), lines[0] if lines else "")
        what = first.removeprefix(f"{self.name}: ").removeprefix("Error: ")
        return UnavailableError(self.name, what or "failed without a message")

    def missing(self) -> UnavailableError:
        """Returns the error for a machine without it."""
        return UnavailableError(self.name, "is not on PATH", self.dialect.install)

    def executable(self) -> str:
        """Returns its path; raises `UnavailableError` where PATH lacks it."""
        executable = shutil.which(self.name)
        if executable is None:
            raise self.missing()
        return executable

    def _run(
        self, words: tuple[str, ...], secrets: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(  # noqa: S603
            [self.executable(), *words],
            env={**os.environ, **(secrets or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )


def find_program() -> Program:
    """Returns docker, or podman where docker is not installed or is podman by another name.

    `TRTSPEC_CONTAINERS` chooses if both are there. If docker's daemon does not answer, it does not try
    podman: it would not see what runs in docker. Raises `UnavailableError` for another word.
    """
    choice = os.environ.get(CHOICE, "")
    if choice not in ("", DOCKER.name, PODMAN.name):
        raise UnavailableError(CHOICE, f"{choice} is neither docker nor podman", "docker or podman, or unset")
    docker, podman = shutil.which(DOCKER.name), shutil.which(PODMAN.name)
    if choice == PODMAN.name or (not choice and docker is None and podman):
        return Program(PODMAN.name, PODMAN)
    if docker and is_podman(docker):
        # Debian's and Fedora's package podman-docker. Podman itself does not remark on it in every call.
        return Program(PODMAN.name if podman else DOCKER.name, PODMAN)
    return Program(DOCKER.name, DOCKER)


@cache
def is_podman(executable: str) -> bool:
    """Says whether an executable that is called docker is podman."""
    try:
        result = subprocess.run(  # noqa: S603
            [executable, "--version"], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return result.stdout.startswith("podman version")


def signalled(status: int) -> int:
    """Returns the exit status of a container as Python gives that of a process: negative for a signal.

    Both programs add 128 to the number of the signal; 255 and other numbers beyond that are statuses.
    """
    return 128 - status if status - 128 in signal.valid_signals() else status


def _heard(stream: IO[bytes] | None, said: list[str]) -> Iterator[str]:
    for line in stream or ():
        said.append(line.decode("utf-8", "replace").rstrip())
        yield said[-1]
