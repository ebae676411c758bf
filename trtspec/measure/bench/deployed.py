"""Serves a build during a measurement, on free ports."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import no_progress
from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deploy import place_of, running, with_own_logs
from trtspec.deployment.deployment import DeployOptions, rollout_file
from trtspec.gateway.openai.chat_template import ChatTemplate
from trtspec.gateway.ports import LOOPBACK, Ports, reserved_ports


@dataclass(frozen=True, slots=True)
class BenchTarget:
    """The addresses of a served model."""

    url: str
    """OpenAI's API, or Triton's if the model has no chat template or no chats are requested."""
    metrics_url: str
    model_name: str
    has_chats: bool
    """True if clients can send chats: the model has a chat template."""


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
    """Yields a server that is ready, and stops it after the block; `say` reports both.

    `python` runs another engine's server, which `plain` starts without drafts. With `in_container` Triton is
    that of NVIDIA's image. Raises what `trtspec deploy` raises.
    """
    folder = build.folder.resolve()
    has_chats = chat and ChatTemplate.load(folder / "tokenizer") is not None
    if build.is_of_server and build.is_for_triton:
        repair = "trtspec deploy RECIPE --container, and measure that: --url http://127.0.0.1:8000"
        raise UnavailableError(folder, "needs NVIDIA's image of Triton with vLLM", repair)
    with for_measurement(build, has_api=has_chats, python=python, plain=plain) as asked:
        place = place_of(build, asked, container=in_container and not build.is_of_server)
        deployment = place.deployment
        url = deployment.api_url or f"http://{LOOPBACK}:{deployment.ports.http}"
        target = BenchTarget(url, deployment.metrics_url, deployment.model_name, has_chats)
        place.prepare(no_progress)
        for warning in place.warnings:
            say(warning)
        say(f"starting {deployment.software} (log: {deployment.log})")
        with running(place):
            try:
                yield target
            finally:
                say(f"stopping {deployment.software}")


@contextmanager
def for_measurement(
    build: DeployedBuild, *, has_api: bool = True, python: Path | None = None, plain: bool = False
) -> Iterator[DeployOptions]:
    """Yields options for a server that only serves a measurement, on reserved ports."""
    # A deployment of the same build may run beside it, and writes its own logs into the build.
    logs = build.folder.resolve() / ".trtspec/served"
    logs.mkdir(parents=True, exist_ok=True)
    with reserved_ports(4) as (http, grpc, metrics, api):
        asked = DeployOptions(
            ports=Ports(http, grpc, metrics, api if has_api or build.is_of_server else None),
            logs=logs,
            # A roll-out of the deployment's requests is none of these.
            rollout=rollout_file(logs),
            python=python,
            plain=plain,
        )
        with with_own_logs(build, asked) as options:
            yield options
