"""Serves another engine on this machine, or in a container of its vendor's image."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from trtspec.base.progress import Progress
from trtspec.deploy.container_site import ContainerSite
from trtspec.deploy.foreground import ForegroundServer
from trtspec.deploy.one_container import words
from trtspec.deploy.vendor import in_container, local
from trtspec.deploy.vendor.command import options, program
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.models import Models
from trtspec.deploy.vendor.release import difference
from trtspec.recipe.schema import Hardware


class VendorHere:
    """This machine, with the server of a Python, or of PATH.

    Raises `UnavailableError` where there is none.
    """

    left: str | None = None

    def __init__(self, deployment: VendorDeployment, models: Models, python: Path | None) -> None:
        self._deployment, self._models, launch = deployment, models, models.launch
        self._variables = launch.environment
        started = program(launch, deployment.manners.title, python)
        self.warning = difference(launch, deployment.manners, started)
        own = options(launch, deployment.build, deployment.host, deployment.port, deployment.grace_s)
        self._command = (*started, *own)

    def command_line(self) -> str:
        variables = [f"{name}={shlex.quote(value)}" for name, value in self._variables.items()]
        hidden = [f'{name}="$KEY"' for name in self._deployment.secrets]
        command = " ".join([*variables, *hidden, shlex.join(self._command)])
        return f"cd {shlex.quote(str(self._deployment.build))} && {command}"

    def prepare(self, watch: Progress) -> None:
        self._models.prepare(self._deployment.build)

    def serve(self) -> AbstractContextManager[Callable[[], ForegroundServer]]:
        variables = {**self._models.variables, **self._variables}
        return local.serve(self._deployment, self._command, variables)


class VendorContainer(ContainerSite):
    """A container of the vendor's image; with `detach` it is left running."""

    def __init__(
        self, deployment: VendorDeployment, models: Models, hardware: Hardware, *, detach: bool
    ) -> None:
        super().__init__(deployment, hardware, models.launch.image, detach=detach)
        self._deployment, self._models = deployment, models
        self._container = in_container.container(models.launch, deployment, models, self._gpus)

    def command_line(self) -> str:
        return shlex.join(words(self._container, self._engine, detach=self._detach))

    def prepare(self, watch: Progress) -> None:
        self._models.prepare(self._deployment.build)
        self._fetch(watch)

    def serve(self) -> AbstractContextManager[Callable[[], ForegroundServer]]:
        return in_container.serve(self._deployment, self._container, self._engine, detach=self._detach)
