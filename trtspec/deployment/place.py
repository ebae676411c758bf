"""A place to serve a deployment in, this machine or a container, and the command that starts it there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

from trtspec.base.progress import Progress
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server import RunningServer
from trtspec.pipeline.containers.container import Container

ANY = "0.0.0.0"  # noqa: S104
"""Where a server listens in its container, whose network is its own."""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """A command, and the variables that it needs beside those that are set already.

    It runs in the build directory: the C++ backend finds engines relative to the server's folder.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The variables that nobody else is to see."""


class Launch(Protocol):
    """The start of a deployment's server, in an image that has it."""

    def in_container(self, deployment: Deployment, gpus: int) -> LaunchCommand:
        """Returns the command that runs in a container, which sees so many GPUs; pure."""
        ...

    def mounted(self, made: Container) -> Container:
        """Returns a container that sees what the server loads beside the build; pure."""
        ...

    def check_image(self, build: DeployedBuild) -> None:
        """Raises at once what would fail after minutes of loading in the image."""
        ...


@dataclass(frozen=True, slots=True)
class ServingPlace:
    """A place to serve a deployment in."""

    deployment: Deployment
    prepare: Callable[[Progress], None]
    """Raises a TrtspecError if the build cannot be served there, and fetches what is missing.

    On this machine it also refuses ports that are taken. It comes before `serve`.
    """
    serve: Callable[[], AbstractContextManager[Callable[[], RunningServer]]]
    """Returns a context that yields a function that starts a server, which may not be ready yet; each call
    first ends the last one. At its end no server runs, unless it is left.
    """
    commands: Callable[[], str]
    """Returns the commands that serve it, for a shell."""
    compose: Callable[[], str] | None = None
    """Returns a Compose file that serves it; None if no container does."""
    warnings: tuple[str, ...] = ()
    """The warnings for whoever serves there."""
    left: str | None = None
    """The name of the container that runs on when `serve` has ended; None if none does."""
