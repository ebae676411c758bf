"""A build served for the time of a measurement, on ports of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from trtspec.deploy.build import Build
from trtspec.deploy.deployment import Deployment, patience
from trtspec.deploy.foreground import Server
from trtspec.deploy.ports import Ports, free_ports
from trtspec.deploy.site import Here
from trtspec.errors import StuckError
from trtspec.openai.template import ChatTemplate
from trtspec.progress import no_progress

_LOOPBACK = "127.0.0.1"
_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class Served:
    """Where a server is: `url` is OpenAI's API where the model has a template for chats, else Triton's."""

    url: str
    metrics_url: str
    model_name: str


@contextmanager
def served(build: Build, *, chat: bool, say: Callable[[str], None]) -> Iterator[Served]:
    """Yields a server that is ready, and ends it with the block; `say` is told of both.

    Raises what `trtspec deploy` would.
    """
    folder = build.folder.resolve()
    has_chats = chat and ChatTemplate.load(folder / "tokenizer") is not None
    http, grpc, metrics, api = free_ports(4)
    deployment = Deployment(
        name=build.recipe.name,
        build=folder,
        model_name=build.recipe.serving.model_name,
        ranks=build.ranks,
        ports=Ports(http, grpc, metrics, api if has_chats else None),
        start_s=patience(folder),
        loads_one_by_one=build.shares_a_server,
    )
    site = Here(deployment, build)
    site.prepare(no_progress)
    say(f"starting Triton (log: {deployment.log})")
    with site.serve() as start:
        server = _ready(start)
        try:
            url = deployment.api_url or f"http://{_LOOPBACK}:{http}"
            yield Served(url, f"http://{_LOOPBACK}:{metrics}/metrics", deployment.model_name)
        finally:
            say("stopping Triton")
            server.stop()


def _ready(start: Callable[[], Server]) -> Server:
    """Returns a server that is ready; a start that got stuck in Triton is tried again."""
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
