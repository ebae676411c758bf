"""Where somebody else's server runs: on this machine, or in a container of its vendor's image."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from huggingface_hub.constants import HF_HUB_CACHE

from trtspec.atomic import write_atomically
from trtspec.deploy.container_site import ContainerSite
from trtspec.deploy.foreground import Server
from trtspec.deploy.one_container import words
from trtspec.deploy.vendor import in_container, local
from trtspec.deploy.vendor.build import loads_from_hub
from trtspec.deploy.vendor.command import options, program
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.errors import UnavailableError
from trtspec.progress import Progress
from trtspec.recipe.schema import Recipe
from trtspec.servers.launch import Launch


class VendorHere:
    """This machine, with the server of a Python, or of PATH.

    Raises `UnavailableError` where there is none.
    """

    left: str | None = None
    warning: str | None = None

    def __init__(
        self, deployment: VendorDeployment, launch: Launch, recipe: Recipe, python: Path | None
    ) -> None:
        self._deployment, self._launch = deployment, launch
        self._is_from_hub = loads_from_hub(launch, recipe)
        started = program(launch, deployment.manners.name, python)
        self._command = (*started, *options(launch, deployment, deployment.host))

    def command_line(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._launch.environment.items()]
        hidden = [f'{name}="$KEY"' for name in self._deployment.secrets]
        command = " ".join([*variables, *hidden, shlex.join(self._command)])
        return f"cd {shlex.quote(str(self._deployment.build))} && {command}"

    def prepare(self, watch: Progress) -> None:
        _prepare(self._launch, self._deployment.build)

    def serve(self) -> AbstractContextManager[Callable[[], Server]]:
        variables = dict(self._launch.environment)
        if self._is_from_hub:
            variables |= {name: value for name, value in os.environ.items() if name.startswith("HF_")}
        return local.serve(self._deployment, self._command, variables)


class VendorContainer(ContainerSite):
    """A container of the vendor's image; with `detach` it is left running."""

    def __init__(self, deployment: VendorDeployment, launch: Launch, recipe: Recipe, *, detach: bool) -> None:
        super().__init__(deployment, recipe.hardware, launch.image, detach=detach)
        self._deployment, self._launch = deployment, launch
        self._hub = Path(HF_HUB_CACHE) if loads_from_hub(launch, recipe) else None
        self._container = in_container.container(launch, deployment, self._gpus, self._hub)

    def command_line(self) -> str:
        return shlex.join(words(self._container, self._engine, detach=self._detach))

    def prepare(self, watch: Progress) -> None:
        _prepare(self._launch, self._deployment.build)
        if self._hub:
            self._hub.mkdir(parents=True, exist_ok=True)
        self._fetch(watch)

    def serve(self) -> AbstractContextManager[Callable[[], Server]]:
        return in_container.serve(self._deployment, self._container, self._engine, detach=self._detach)


def _prepare(launch: Launch, build: Path) -> None:
    """Writes files of the launch that the build lacks; raises `UnavailableError` for a model that is gone."""
    for name, text in launch.files.items():
        if not (build / name).exists():
            write_atomically(build / name, text)
    for model in map(Path, launch.models):
        if not model.is_dir():
            raise UnavailableError(model, "the folder of a model is not there", "trtspec build RECIPE")
