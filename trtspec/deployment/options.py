"""Defines the options of a deployment: those of a command line or a caller, or those of a measurement."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from trtspec.base.errors import UnavailableError
from trtspec.base.files import try_lock, unlock
from trtspec.client.local_server import servers_folder
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
    log_number: int = 1
    """That of `with_own_logs`."""
    trace_config: tuple[str, ...] = ()
    rollout: Path | None = None
    python: Path | None = None
    """The Python of another engine's server, if PATH has not its program."""
    plain: bool = False
    """True for another engine's server without drafts."""


@contextmanager
def with_own_logs(build: DeployedBuild, options: DeployOptions) -> Iterator[DeployOptions]:
    """Yields the options of a server whose logs have a number that no other server's have meanwhile.

    Where nothing can be locked, the logs are those without a number. The lock is not beside the logs, since
    serving leaves a build as it is.
    """
    logs = f"{(options.logs or build.folder).resolve()}{'-plain' * options.plain}"
    name, locks, number, held = sha256(logs.encode()).hexdigest()[:16], servers_folder(), 0, None
    try:
        locks.mkdir(parents=True, exist_ok=True)
        while held is None:
            number += 1
            lock = locks / f"logs-{name}-{number}.lock"
            held = try_lock(lock)
    except (OSError, UnavailableError):
        yield options
        return
    try:
        yield replace(options, log_number=number)
    finally:
        unlock(held, lock)


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
