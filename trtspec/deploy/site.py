"""A site: a deployment at the place where it is served, this machine or a container of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from trtspec.base.progress import Progress
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.server import RunningServer


@dataclass(frozen=True, slots=True)
class Site:
    """A place to serve a deployment in."""

    deployment: Deployment
    command_line: str
    """The line that starts the server, for a shell."""
    prepare: Callable[[Progress], None]
    """Raises a TrtspecError if the build cannot be served there, and fetches what is missing."""
    serve: Callable[[], AbstractContextManager[Callable[[], RunningServer]]]
    """Returns a context that yields a function that starts a server, which may not be ready yet; each call
    first ends the last one. At its end no server runs, unless it is left.
    """
    warning: str | None = None
    """A warning for whoever serves there; None if there is nothing to warn of."""
    left: str | None = None
    """The name of the container that runs on when `serve` has ended; None if none does."""
