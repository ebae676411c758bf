"""Finds and stops servers that `trtspec deploy --container` has started."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from trtspec.client.local_server import forget
from trtspec.deployment.container import LABEL, ContainerProcess
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server import RunningServer
from trtspec.deployment.server_kind import TRITON, kind_of
from trtspec.deployment.triton_launch import stopping_file
from trtspec.deployment.triton_server import Door, TritonServer
from trtspec.gateway.openai.settings import ModelCard
from trtspec.gateway.ports import Ports, listens
from trtspec.pipeline.containers.program import Program
from trtspec.pipeline.containers.state import State, find_states, remove

# The label that only containers of another engine's server have: the backend.
_VENDOR = f"{LABEL}.vendor"
_END_S = 10.0


@dataclass(frozen=True, slots=True)
class DeployedContainer:
    """A server in a container: the deployment from its labels, and the container's state."""

    deployment: Deployment
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
    def api_flaw(self) -> str:
        """The problem of OpenAI's API in front of Triton, such as "not running"; empty for none.

        It is a process of this machine, which nothing restarts after a reboot. `deploy` checks it only as
        long as `deploy` itself runs.
        """
        deployment, port = self.deployment, self.deployment.ports.openai
        if not deployment.is_triton or port is None or not self.state.is_running:
            return ""
        if not listens(deployment.client_host, port):
            return "not running"
        return "" if deployment.ask(port, "/health")[0] else "not answering"


def find_deployed(program: Program) -> list[DeployedContainer]:
    """Returns the servers, including ended ones; raises `UnavailableError` if docker or podman does not
    answer."""
    return [DeployedContainer(_deployment(state.labels), state) for state in find_states(program, LABEL)]


def stop(program: Program, deployed: DeployedContainer) -> None:
    """Stops a server when its requests have ended or their grace period is over, and removes its
    container."""
    state, deployment = deployed.state, deployed.deployment
    if state.is_running and not state.is_restarting:
        running_in(ContainerProcess(program, state.id), deployment).stop()
    remove(program, state.id)
    forget(state.name)
    if deployment.is_triton and deployment.ports.openai:
        _wait_for_end(deployment.client_host, deployment.ports.openai)


def running_in(process: ContainerProcess, deployment: Deployment, *doors: Door) -> RunningServer:
    """Returns the server of a container, with the processes in front of it."""
    if not deployment.is_triton:
        return RunningServer(deployment, process)
    tell = f"echo {deployment.grace_s} > {stopping_file(deployment)}"
    return TritonServer(deployment, process, lambda: process.run(tell), *doors)


def labels_of(deployment: Deployment) -> dict[str, str]:
    """Returns the labels that describe a deployment; pure."""
    ports = deployment.ports
    labels = {
        LABEL: deployment.name,
        f"{LABEL}.build": str(deployment.build),
        f"{LABEL}.model": deployment.model_name,
        f"{LABEL}.host": deployment.host,
    }
    if deployment.is_triton:
        labels[f"{LABEL}.ports"] = f"{ports.http},{ports.grpc},{ports.metrics}"
    labels[f"{LABEL}.grace"] = f"{deployment.grace_s:g}"
    if ports.openai:
        labels[f"{LABEL}.openai"] = str(ports.openai)
    if not deployment.is_triton:
        return {**labels, _VENDOR: deployment.kind.name}
    if deployment.api_keys:
        labels[f"{LABEL}.api_keys"] = str(deployment.api_keys.resolve())
    if ports.openai:
        labels[f"{LABEL}.card"] = deployment.card.to_json()
    # The key is among the server's options too, and those who may read them may do anything.
    return {**labels, f"{LABEL}.key": deployment.key}


def _deployment(labels: Mapping[str, str]) -> Deployment:
    """Returns the deployment that `labels_of` describes."""
    found = {name.removeprefix(f"{LABEL}."): value for name, value in labels.items()}
    openai = int(found["openai"]) if "openai" in found else None
    own = map(int, found["ports"].split(",")) if "ports" in found else ()
    return Deployment(
        name=labels[LABEL],
        build=Path(found["build"]),
        model_name=found["model"],
        kind=kind_of(labels[_VENDOR]) if _VENDOR in labels else TRITON,
        host=found["host"],
        ports=replace(Ports(*own), openai=openai),
        grace_s=float(found["grace"]),
        api_keys=Path(found["api_keys"]) if "api_keys" in found else None,
        card=ModelCard.from_json(found["card"]) if "card" in found else ModelCard(),
        key=found.get("key", ""),
    )


def _wait_for_end(host: str, port: int) -> None:
    """Waits until the port is free: OpenAI's API ends once it finds its container gone."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and listens(host, port):
        time.sleep(0.1)
