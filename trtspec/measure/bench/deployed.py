"""A build served for the time of a measurement, on ports of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import StuckError, UnavailableError
from trtspec.base.progress import no_progress
from trtspec.deploy.build import DeployedBuild
from trtspec.deploy.deployment import Deployment, rollout_file
from trtspec.deploy.foreground import ForegroundServer
from trtspec.deploy.logs import logs_of_measurement
from trtspec.deploy.patience import with_build
from trtspec.deploy.site import Here, InContainer, Site
from trtspec.deploy.vendor.build import find_launch
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.meanwhile import meanwhile
from trtspec.gateway.addresses import LOOPBACK
from trtspec.gateway.openai.template import ChatTemplate
from trtspec.gateway.ports import Ports, reserved_ports

_LOOK_S = 0.1


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The addresses of a served model."""

    url: str
    """OpenAI's API, or Triton's where the model has no chat template or no chats are wanted."""
    metrics_url: str
    model_name: str
    has_chats: bool
    """True if clients can send the model chats, for which it needs a chat template."""


@contextmanager
def served(
    build: DeployedBuild,
    *,
    chat: bool,
    python: Path | None,
    say: Callable[[str], None],
    plain: bool = False,
    in_container: bool = False,
) -> Iterator[BenchTarget]:
    """Yields a server that is ready, and ends it with the block; `say` is told of both.

    `python` is that of a server of others, which with `plain` is started without drafts. With `in_container`
    a Triton is that of NVIDIA's image. Raises what `trtspec deploy` would.
    """
    folder = build.folder.resolve()
    has_chats = chat and ChatTemplate.load(folder / "tokenizer") is not None
    deployment: Deployment | VendorDeployment
    site: Site
    launch = find_launch(folder)
    if launch and build.is_for_triton:
        repair = "trtspec deploy RECIPE --container, and measure that: --url http://127.0.0.1:8000"
        raise UnavailableError(folder, "is for NVIDIA's image of Triton with vLLM", repair)
    with reserved_ports(4) as (http, grpc, metrics, api):
        if launch:
            deployment, site = meanwhile(build, launch, python, api, plain=plain)
            url, metrics_url = deployment.url, f"http://{LOOPBACK}:{api}/metrics"
        else:
            ports = Ports(http, grpc, metrics, api if has_chats else None)
            deployment = _under_triton(build, folder, ports)
            site = InContainer(deployment, build, detach=False) if in_container else Here(deployment, build)
            url = deployment.api_url or f"http://{LOOPBACK}:{http}"
            metrics_url = f"http://{LOOPBACK}:{metrics}/metrics"
        target = BenchTarget(url, metrics_url, deployment.model_name, has_chats)
        with _running(deployment, site, say):
            yield target


@contextmanager
def _running(
    deployment: Deployment | VendorDeployment, site: Site, say: Callable[[str], None]
) -> Iterator[None]:
    site.prepare(no_progress)
    if site.warning:
        say(site.warning)
    say(f"starting {deployment.software} (log: {deployment.log})")
    with site.serve() as start:
        server = _ready(start)
        try:
            yield
        finally:
            say(f"stopping {deployment.software}")
            server.stop()


def _under_triton(build: DeployedBuild, folder: Path, ports: Ports) -> Deployment:
    logs = logs_of_measurement(folder)
    return Deployment(
        name=build.recipe.name,
        build=folder,
        model_name=build.recipe.serving.model_name,
        ranks=build.ranks,
        ports=ports,
        start_s=with_build(folder).seconds,
        loads_one_by_one=build.shares_a_server,
        # A roll-out of the deployment's requests is none of these.
        rollout=rollout_file(logs),
        logs=logs,
    )


def _ready(start: Callable[[], ForegroundServer]) -> ForegroundServer:
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
