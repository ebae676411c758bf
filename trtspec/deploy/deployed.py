"""Servers that `trtspec deploy --docker` has started and that are still there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.deploy.deployment import Deployment
from trtspec.deploy.in_docker import LABEL, ContainerProcess
from trtspec.deploy.ports import Ports
from trtspec.deploy.server import Server
from trtspec.docker.state import State, find_states, remove


@dataclass(frozen=True, slots=True)
class Deployed:
    """One of them, as its labels tell of it."""

    deployment: Deployment
    state: State

    @property
    def condition(self) -> str:
        """ready, starting, or how it ended."""
        if not self.state.is_running:
            status = self.state.status
            return f"ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return "ready" if self.deployment.is_ready() else "starting"


def find_deployed() -> list[Deployed]:
    """Raises `UnavailableError` where docker cannot be asked."""
    return [Deployed(_deployment(state), state) for state in find_states(LABEL)]


def stop(deployed: Deployed) -> None:
    """Ends it when the requests in flight have ended, and removes its container."""
    name = deployed.state.name
    if deployed.state.is_running:
        Server(deployed.deployment, ContainerProcess(name)).stop()
    remove(name)


def _deployment(state: State) -> Deployment:
    labels = state.labels
    return Deployment(
        name=labels[LABEL],
        build=Path(labels[f"{LABEL}.build"]),
        model_name=labels[f"{LABEL}.model"],
        host=labels[f"{LABEL}.host"],
        ports=Ports(*map(int, labels[f"{LABEL}.ports"].split(","))),
    )
