"""Containers that are there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.docker.command import run, run_if_there, signalled


@dataclass(frozen=True, slots=True)
class State:
    """One container; `status` is how it ended, negative for a signal, `created` a time in ISO 8601.

    `health` is "starting", "healthy" or "unhealthy", "" without a check; `restarts` is how often docker has
    started it again, which `is_restarting` waits for.
    """

    id: str
    name: str
    image: str
    is_running: bool
    status: int
    created: str
    health: str
    restarts: int
    is_restarting: bool
    labels: Mapping[str, str]


def find_state(name: str) -> State | None:
    """Of a name or an id; None where there is no such container."""
    found = run_if_there("container", "inspect", name)
    return _state(json.loads(found)[0]) if found else None


def find_states(label: str) -> list[State]:
    """Of every container with this label, ended or not."""
    ids = run("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={label}").split()
    return [state for name in ids if (state := find_state(name))]


def remove(container_id: str) -> None:
    """Ends the container if it runs; harmless where there is none. A name may be somebody else's by now."""
    run_if_there("rm", "--force", container_id)


def _state(content: Mapping[str, Any]) -> State:
    config, state = content["Config"], content["State"]
    return State(
        id=content["Id"],
        name=content["Name"].removeprefix("/"),
        image=config["Image"],
        is_running=state["Running"],
        status=signalled(state["ExitCode"]),
        created=content["Created"],
        health=state.get("Health", {}).get("Status", ""),
        restarts=content["RestartCount"],
        is_restarting=state["Restarting"],
        labels=config["Labels"] or {},
    )
