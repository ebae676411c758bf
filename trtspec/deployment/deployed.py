"""Finds and stops servers that `trtspec deploy --container` has started."""

from __future__ import annotations

import time
from dataclasses import dataclass

from trtspec.client.local_server import forget
from trtspec.deployment.container import LABEL, ContainerProcess, deployment_of
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.server import RunningServer
from trtspec.deployment.triton_launch import stopping_file
from trtspec.deployment.triton_server import Door, TritonServer
from trtspec.gateway.ports import listens
from trtspec.pipeline.containers.program import Program
from trtspec.pipeline.containers.state import State, find_states, remove

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
    return [DeployedContainer(deployment_of(state.labels), state) for state in find_states(program, LABEL)]


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


def _wait_for_end(host: str, port: int) -> None:
    """Waits until the port is free: OpenAI's API ends once it finds its container gone."""
    deadline = time.monotonic() + _END_S
    while time.monotonic() < deadline and listens(host, port):
        time.sleep(0.1)
