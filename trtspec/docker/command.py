"""Runs docker's command line; what docker says of a failure becomes one line."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from trtspec.causes import Cause, find_cause
from trtspec.errors import UnavailableError

DOCKER = "docker"
TOOLKIT = "install nvidia-container-toolkit, then: sudo nvidia-ctk runtime configure --runtime=docker"

CAUSES = (
    Cause(
        r"permission denied while trying to connect",
        "docker's daemon does not let this user in",
        "sudo usermod -aG docker $USER, and log in again",
    ),
    Cause(
        r"Cannot connect to the Docker daemon|error during connect|failed to connect to the docker API",
        "docker's daemon does not answer",
        "start it: sudo systemctl start docker",
    ),
    Cause(r"could not select device driver|unresolvable CDI devices", "containers get no GPUs here", TOOLKIT),
    Cause(
        r"nvidia-container-cli: (.+)",
        "the container cannot have its GPUs: {0}",
        "trtspec doctor shows what this machine has",
    ),
    Cause(r"no space left on device", "docker's disk is full", "docker system df shows what takes it"),
    Cause(r"No such image: (\S+)", "it has no {0}", "run the same command again, which pulls it"),
)


_GONE = re.compile(
    r"No such (container|image|object)|is not running|removal of container .* already in progress"
)


def run(*words: str) -> str:
    """Returns the output of a docker command; raises `UnavailableError` when it fails."""
    result = _run(words)
    if result.returncode:
        raise explained(result.stderr)
    return result.stdout


def run_if_there(*words: str) -> str | None:
    """Returns the output of a docker command about a thing that may be gone, None when it is.

    Raises `UnavailableError` when the command fails for another reason.
    """
    result = _run(words)
    if result.returncode == 0:
        return result.stdout
    if _GONE.search(result.stderr):
        return None
    raise explained(result.stderr)


def start(words: tuple[str, ...], output: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Starts a docker command that the terminal's Ctrl-C does not reach; what it says goes to `output`."""
    return subprocess.Popen(  # noqa: S603
        [_executable(), *words],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )


@contextmanager
def lines(*words: str) -> Iterator[Iterator[str]]:
    """Yields the lines that a docker command says; raises `UnavailableError` when it fails.

    An exception in the block ends the command.
    """
    said: list[str] = []
    with start(words, subprocess.PIPE) as process:
        try:
            yield _heard(process.stdout, said)
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise explained("\n".join(said))


def signalled(status: int) -> int:
    """Returns the exit status of a container as Python gives that of a process: negative for a signal.

    Docker adds 128 to the number of the signal.
    """
    return 128 - status if status > 128 else status


def explained(said: str) -> UnavailableError:
    """Returns an error that tells what is wrong with docker, from what docker said."""
    if known := find_cause(CAUSES, said):
        return UnavailableError(DOCKER, *known)
    first = next((line for line in said.splitlines() if line.strip()), "failed without a word")
    return UnavailableError(DOCKER, first.removeprefix("docker: "))


def missing() -> UnavailableError:
    """Returns the error for a machine without docker."""
    return UnavailableError(DOCKER, "is not on PATH", "install Docker Engine: docs.docker.com/engine/install")


def _heard(stream: IO[bytes] | None, said: list[str]) -> Iterator[str]:
    for line in stream or ():
        said.append(line.decode("utf-8", "replace").rstrip())
        yield said[-1]


def _run(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # noqa: S603
        [_executable(), *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
    )


def _executable() -> str:
    executable = shutil.which(DOCKER)
    if executable is None:
        raise missing()
    return executable
