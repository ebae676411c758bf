"""The states of containers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.pipeline.containers.program import Program, signalled


@dataclass(frozen=True, slots=True)
class State:
    """The state of one container."""

    id: str
    name: str
    image: str
    is_running: bool
    status: int
    """The exit status; negative for a signal."""
    created: str
    """A time in ISO 8601."""
    health: str
    """"starting", "healthy" or "unhealthy"; "" without a check."""
    restarts: int
    """The number of times that it has been started again."""
    is_restarting: bool
    """True if it is about to be started again."""
    labels: Mapping[str, str]


def find_state(program: Program, name: str) -> State | None:
    """Returns the state of the container with this name or id; None if there is none."""
    found = program.run_if_there("container", "inspect", name)
    return _state(json.loads(found)[0]) if found else None


def find_states(program: Program, label: str) -> list[State]:
    """Returns the state of every container with this label, ended or not."""
    ids = program.run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
    return [state for name in ids if (state := find_state(program, name))]


def remove(program: Program, container_id: str) -> None:
    """Ends and removes the container, if there is one.

    It takes an id, because another container may have the name by now.
    """
    program.run_if_there(*program.dialect.remove, container_id)


def _state(content: Mapping[str, Any]) -> State:
    config, state = content["Config"], content["State"]
    return State(
        id=content["Id"],
        name=content["Name"].removeprefix("/"),
        image=config["Image"],
        is_running=state["Running"],
        status=signalled(state["ExitCode"]),
        created=content["Created"],
        health=(state.get("Health") or {}).get("Status", ""),
        restarts=content["RestartCount"],
        is_restarting=state["Restarting"],
        labels=config["Labels"] or {},
    )
