"""`trtspec deploy --container`'s world: a stand-in for docker, or podman, that runs a real Triton."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from tests.fakes.docker_daemon import DockerDaemon
from tests.fakes.gpu_machine import GpuMachine
from tests.support.command_line import trtspec
from trtspec.deployment.triton.install import find_wheel
from trtspec.recipe.releases import release_of

if TYPE_CHECKING:
    from tests.e2e.conftest import Deploy

IMAGE = release_of(None).image
# The wheel's release does not know the one option that the images' releases have. A container's shared memory
# is its own; here it is known by its name.
SERVER = """#!/bin/sh
{variables}
for word; do
    shift
    case "$word" in
        --http-max-input-size=*) ;;
        *,shm-region-prefix-name=*) set -- "$@" "${{word}}container_$$_" ;;
        *) set -- "$@" "$word" ;;
    esac
done
exec {server} --backend-directory={backends} "$@"
"""


class Docker:
    """The stand-in, its images with the wheel's tritonserver, and what the command line needs to find it."""

    def __init__(self, folder: Path, *, podman: bool = False) -> None:
        self.machine = GpuMachine(folder)
        made = self.machine.podman if podman else self.machine.containers
        self.daemon: DockerDaemon = made(IMAGE)
        self.environment = {**self.machine.environment, "HF_TOKEN": "hf_secret"}
        self.environment["PYTHONPATH"] = os.environ.get("PYTHONPATH", "")
        # The servers of other tests are not this machine's.
        self.environment["XDG_STATE_HOME"] = str(folder / "state")
        wheel = find_wheel()
        variables = "\n".join(f"export {name}={value}" for name, value in wheel.variables.items())
        self.daemon.program(
            "tritonserver",
            SERVER.format(variables=variables, server=wheel.server, backends=wheel.backends),
        )
        self.daemon.in_image(OMP_NUM_THREADS="1")

    def trtspec(self, *words: str) -> subprocess.CompletedProcess[str]:
        return trtspec(*words, environment=self.environment)

    def names(self) -> list[str]:
        """Of the containers that are there."""
        return [folder.name for folder in (self.daemon.folder / "containers").iterdir()]


class Deploying(Protocol):
    """Deploys the build in a container."""

    def __call__(self, *options: str, with_api: bool = False) -> Deploy: ...
