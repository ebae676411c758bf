"""Serves a build for the time of a block."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trtspec.base.errors import StuckError
from trtspec.base.progress import Progress, no_progress
from trtspec.deployment.build import find_build
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.here import here
from trtspec.deployment.in_container import in_container
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.server import RunningServer
from trtspec.deployment.site import Site

_LOOK_S = 0.1


@contextmanager
def deploy(
    recipe: Path | str,
    *,
    output: Path | str | None = None,
    container: bool = False,
    options: DeployOptions | None = None,
    progress: Progress = no_progress,
    warn: Callable[[str], object] = lambda _: None,
) -> Iterator[Deployment]:
    """Serves the build of a recipe, and stops the server at the end of the block; yields its addresses.

    The build is in `output`, or in the usual folder. It is served by what is installed here, or with
    `container` in NVIDIA's or the vendor's image. The block begins when the server is ready. `progress`
    reports downloads before that, and `warn` gets harmless problems.

    Raises RecipeError, UnavailableError if there is no build or nothing that could serve it, and ServerError
    for a server that does not become ready.
    """
    build = find_build(recipe, output)
    if stale := build.staleness:
        warn(f"{stale}; trtspec serves the build as it is")
    wanted = options or DeployOptions()
    site = in_container(build, wanted, detach=False) if container else here(build, wanted)
    site.prepare(progress)
    for warning in filter(None, (site.warning, site.deployment.exposure)):
        warn(warning)
    with running(site):
        yield site.deployment


@contextmanager
def running(site: Site) -> Iterator[None]:
    """Starts the server of a place that is prepared, waits until it is ready, and stops it with the block."""
    with site.serve() as start:
        server = _ready(start)
        try:
            yield
        finally:
            server.stop()


def _ready(start: Callable[[], RunningServer]) -> RunningServer:
    """Returns a server that is ready; repeats a start that hangs in Triton."""
    for is_last in (False, False, True):
        server = start()
        try:
            while not server.is_ready():
                time.sleep(_LOOK_S)
            break
        except StuckError:
            if is_last:
                raise
    return server
