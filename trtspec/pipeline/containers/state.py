"""The states of containers, and the images that are on this machine."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trtspec.base.errors import UnavailableError
from trtspec.base.progress import Progress
from trtspec.pipeline.containers.program import Program, signalled
from trtspec.recipe.releases import pinned


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


def is_here(program: Program, image: str) -> bool:
    """Says whether this machine has the image."""
    return program.run_if_there("image", "inspect", "--format", "{{.Id}}", image) is not None


def pull_commands(image: str) -> list[tuple[str, ...]]:
    """Returns the words that fetch an image: that of a release by its digest, and then its tag."""
    exact = pinned(image) if platform.machine() == "x86_64" else image
    return [("pull", exact), *([("tag", exact, image)] if exact != image else [])]


def ensure_image(program: Program, image: str, watch: Progress) -> None:
    """Pulls an image that is not here; raises `UnavailableError` when that fails.

    The image of a release is pulled by its digest, and gets its tag then. A machine that has the tag already,
    such as a copy from a file, keeps its own.
    """
    if is_here(program, image):
        return
    pull, *tag = pull_commands(image)
    pulling, pulled = program.dialect.pulling, program.dialect.pulled
    layers: dict[str, bool] = {}
    with watch(f"pull {image}", None) as advance:
        try:
            with program.lines(*pull) as said:
                for line in said:
                    if layer := pulling.match(line):
                        is_there = pulled is not None and bool(pulled.search(line))
                        layers[layer[1]] = layers.get(layer[1], False) or is_there
                        begun = f"{len(layers)} layers"
                        advance(0, f"{sum(layers.values())} of {begun}" if pulled else begun)
            for words in tag:
                program.run(*words)
        except UnavailableError as error:
            if error.repair:
                raise
            repair = f"run {program.name} pull {image} to see more"
            raise UnavailableError(image, f"cannot be pulled: {error.problem}", repair) from None


def image_digest(program: Program, image: str) -> str:
    """Returns the digest by which a registry knows an image, `name@sha256:…`; its name if none does."""
    shown = "{{range .RepoDigests}}{{println .}}{{end}}"
    found = program.run_if_there("image", "inspect", "--format", shown, image)
    return next(iter((found or "").split()), image)
