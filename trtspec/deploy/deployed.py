"""Servers that `trtspec deploy --container` has started and that are still there."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.containers.program import Program
from trtspec.backends.containers.state import State, find_states, remove
from trtspec.deploy.deployment import Deployment
from trtspec.deploy.in_container import TritonProcess
from trtspec.deploy.one_container import LABEL, ContainerProcess
from trtspec.deploy.server import TritonServer
from trtspec.deploy.vendor.deployment import VendorDeployment
from trtspec.deploy.vendor.in_container import VENDOR
from trtspec.deploy.vendor.server import VendorServer
from trtspec.gateway.ports import Ports, listens

_END_S = 10.0


@dataclass(frozen=True, slots=True)
class DeployedContainer:
    """One such server: the deployment that its container's labels describe, and the container's state."""

    deployment: Deployment | VendorDeployment
    state: State

    @property
    def condition(self) -> str:
        """The condition in words: starting, ready, unhealthy, restarting, or how it ended."""
        state = self.state
        if state.is_restarting:
            return "restarting"
        if not state.is_running:
            return f"ended by signal {-state.status}" if state.status < 0 else f"ended with {state.status}"
        if self.deployment.is_ready():
            return "ready"
        return "unhealthy" if state.health == "unhealthy" else "starting"

    @property
    def lacks_api(self) -> bool:
        """True if nobody listens where OpenAI's API should be.

        It is a process of this machine, which nobody starts again when the machine was.
        """
        deployment = self.deployment
        if isinstance(deployment, VendorDeployment) or deployment.ports.openai is None:
            return False
        return self.state.is_running and not listens(deployment.client_host, deployment.ports.openai)


def find_deployed(program: Program) -> list[DeployedContainer]:
    """Returns the servers, ended ones too; raises `UnavailableError` where the program cannot be asked."""
    return [DeployedContainer(_deployment(state), state) for state in find_states(program, LABEL)]


def stop(program: Program, deployed: DeployedContainer) -> None:
    """Ends a server when its requests have ended or their grace is over, and removes its container."""
    state, deployment = deployed.state, deployed.deployment
    if state.is_running and not state.is_restarting:
        _server(program, state, deployment).stop()
    remove(program, state.id)
    if isinstance(deployment, Deployment) and deployment.ports.openai:
        _wait_for_end(deployment.client_host, deployment.ports.openai)


def _server(
    program: Program, state: State, deployment: Deployment | VendorDeployment
) -> TritonServer | VendorServer:
    if isinstance(deployment, VendorDeployment):
        return VendorServer(deployment, ContainerProcess(program, state.id))
    return TritonServer(deployment, TritonProcess(program, state.id, state.name, deployment.grace_s))


def _deployment(state: State) -> Deployment | VendorDeployment:
    labels = state.labels
    if VENDOR in labels:
        return VendorDeployment(
            name=labels[LABEL],
            build=Path(labels[f"{LABEL}.build"]),
            backend=labels[VENDOR],
            model_name=labels[f"{LABEL}.model"],
            host=labels[f"{LABEL}.host"],
            port=int(labels[f"{LABEL}.openai"]),
            grace_s=float(labels[f"{LABEL}.grace"]),
        )
    return Deployment(
        name=labels[LABEL],
        build=Path(labels[f"{LABEL}.build"]),
        model_name=labels[f"{LABEL}.model"],
        host=labels[f"{LABEL}.host"],
        ports=_ports(labels),
        grace_s=float(labels[f"{LABEL}.grace"]),
        key=labels[f"{LABEL}.key"],
        api_keys=Path(labels[f"{LABEL}.api_keys"]) if f"{LABEL}.api_keys" in labels else None,
    )


def _wait_for_end(host: str, port: int) -> None:
    """Waits until nobody listens on the port, since OpenAI's API ends when it misses its container."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and listens(host, port):
        time.sleep(0.1)


def _ports(labels: Mapping[str, str]) -> Ports:
    http, grpc, metrics = map(int, labels[f"{LABEL}.ports"].split(","))
    openai = labels.get(f"{LABEL}.openai")
    return Ports(http, grpc, metrics, int(openai) if openai else None)
