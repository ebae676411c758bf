"""Defines the options of a deployment: those of a command line or a caller, or those of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from trtspec.deployment.build import DeployedBuild
from trtspec.deployment.deployment import GRACE_S, rollout_file
from trtspec.gateway.ports import LOOPBACK, OPENAI, Ports, reserved_ports


@dataclass(frozen=True, slots=True)
class DeployOptions:
    """The options of a deployment besides its recipe and its build."""

    host: str = LOOPBACK
    allowed_hosts: tuple[str, ...] = ()
    ports: Ports = field(default_factory=lambda: Ports(openai=OPENAI))
    """That of OpenAI's API is left out where it is not served; another engine's server has it alone."""
    start_s: float | None = None
    """The seconds that the server has to be ready; None for what its files ask."""
    grace_s: float = GRACE_S
    api_keys: Path | None = None
    json_logs: bool = False
    logs: Path | None = None
    trace_config: tuple[str, ...] = ()
    rollout: Path | None = None
    python: Path | None = None
    """The Python of another engine's server, if PATH has not its program."""
    plain: bool = False
    """True for another engine's server without drafts."""


@contextmanager
def for_measurement(
    build: DeployedBuild, *, has_api: bool = True, python: Path | None = None, plain: bool = False
) -> Iterator[DeployOptions]:
    """Yields options for a server that only serves a measurement, on reserved ports."""
    # A deployment of the same build may run beside it, and writes its own logs into the build.
    logs = build.folder.resolve() / ".trtspec/served"
    logs.mkdir(parents=True, exist_ok=True)
    with reserved_ports(4) as (http, grpc, metrics, api):
        yield DeployOptions(
            ports=Ports(http, grpc, metrics, api if has_api or build.is_of_server else None),
            logs=logs,
            # A roll-out of the deployment's requests is none of these.
            rollout=rollout_file(logs),
            python=python,
            plain=plain,
        )
