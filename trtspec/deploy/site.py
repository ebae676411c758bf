"""Serves a build on this machine, or in a container of NVIDIA's image."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Protocol

from trtspec.backends.containers.container import Container
from trtspec.backends.table import backend_named
from trtspec.base.progress import Progress
from trtspec.deploy import in_container, local
from trtspec.deploy.build import DeployedBuild
from trtspec.deploy.container_site import ContainerSite
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.foreground import ForegroundServer
from trtspec.deploy.one_container import words
from trtspec.deploy.vendor.models import find_models
from trtspec.pipeline.machine.devices import find_gpus
from trtspec.pipeline.machine.runtime import image_runtime, this_runtime
from trtspec.recipe.releases import release_of

# Stands in place of the key in command lines that are shown.
_HIDDEN = "$KEY"


class Site(Protocol):
    """A place to serve a build in."""

    warning: str | None
    """A warning for whoever serves there; None if there is nothing to warn of."""
    left: str | None
    """The name of the container that runs on when `serve` has ended; None if none does."""

    def command_line(self) -> str:
        """Returns the line that starts the server, for a shell."""
        ...

    def prepare(self, watch: Progress) -> None:
        """Raises a TrtspecError if the build cannot be served there, and fetches what is missing."""
        ...

    def serve(self) -> AbstractContextManager[Callable[[], ForegroundServer]]:
        """Returns a context that yields a function that starts a server.

        At its end no server runs, unless it is left.
        """
        ...


class Here:
    """This machine: the Triton of NVIDIA's image, if this is one, or the one that is installed.

    Raises `UnavailableError` where none is.
    """

    left: str | None = None

    def __init__(self, deployment: Deployment, build: DeployedBuild) -> None:
        self._deployment, self._build = deployment, build
        self._triton, self._gpus = local.find_triton(), len(find_gpus())
        self.warning = self._triton.problem if deployment.is_public else None

    def command_line(self) -> str:
        hidden = replace(self._deployment, key=_HIDDEN)
        shown = local.line(hidden, self._triton, self._gpus)
        variables = [f"{name}={shlex.quote(value)}" for name, value in shown.environment.items()]
        command = " ".join([*variables, shlex.join(shown.argv)])
        return f"cd {shlex.quote(str(hidden.build))} && {command}"

    def prepare(self, watch: Progress) -> None:
        self._build.check(this_runtime())
        local.wait_for_ports(self._deployment, watch)

    def serve(self) -> AbstractContextManager[Callable[[], ForegroundServer]]:
        return local.serve(self._deployment, self._triton, self._gpus)


class InContainer(ContainerSite):
    """A container of the image that has what the build needs; with `detach` it is left running.

    That is the release of its engines, or vLLM's backend, which loads the models itself.
    """

    def __init__(self, deployment: Deployment, build: DeployedBuild, *, detach: bool) -> None:
        self._deployment, self._build, self._models = deployment, build, find_models(build)
        image = backend_named(build.recipe.backend).image(build.recipe)
        super().__init__(deployment, build.recipe.hardware, image, detach=detach)
        self._container = self._made_for(deployment)

    def command_line(self) -> str:
        hidden = self._made_for(replace(self._deployment, key=_HIDDEN))
        return shlex.join(words(hidden, self._engine, detach=self._detach))

    def prepare(self, watch: Progress) -> None:
        if self._models:
            self._models.prepare(self._build.folder)
        else:
            self._build.check(image_runtime(release_of(self._build.recipe.engine.release)))
        self._fetch(watch)

    def serve(self) -> AbstractContextManager[Callable[[], ForegroundServer]]:
        return in_container.serve(self._deployment, self._container, self._engine, detach=self._detach)

    def _made_for(self, deployment: Deployment) -> Container:
        made = in_container.container(deployment, self._image, self._gpus)
        return self._models.mounted(made) if self._models else made
