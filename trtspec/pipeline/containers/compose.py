"""A container as a service of a Compose file (github.com/compose-spec/compose-spec); pure."""

from __future__ import annotations

from typing import Any

from trtspec.pipeline.containers.container import Container
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.recipe.releases import pinned

_SINGLE = {
    "--name": "container_name",
    "--shm-size": "shm_size",
    "--userns": "userns_mode",
    "--user": "user",
    "--workdir": "working_dir",
}
_LISTS = {
    "--label": "labels",
    "--device": "devices",
    "--cap-drop": "cap_drop",
    "--security-opt": "security_opt",
    "--env": "environment",
    "--publish": "ports",
}


def service(made: Container, engine: ContainerEngine) -> dict[str, Any]:
    """Returns the service that runs what `made.run` does; raises ValueError for an option without a key."""
    found: dict[str, Any] = {"image": pinned(made.image)}
    for option, *values in made.options(engine):
        value = "".join(values)
        if option in _SINGLE:
            found[_SINGLE[option]] = value
        elif option in _LISTS:
            found.setdefault(_LISTS[option], []).append(value)
        elif option == "--init":
            found["init"] = True
        elif option == "--entrypoint":
            found["entrypoint"] = [value]
        elif option == "--ulimit":
            name, _, limit = value.partition("=")
            found.setdefault("ulimits", {})[name] = int(limit)
        elif option == "--log-driver":
            found["logging"] = {"driver": value, "options": {}}
        elif option == "--log-opt":
            name, _, text = value.partition("=")
            found["logging"]["options"][name] = text
        elif option not in ("--pull", "--gpus", "--mount") and not option.startswith("--health-"):
            raise ValueError(f"Compose has no {option}")
    if made.gpus and "devices" not in found:
        gpus = {"driver": "nvidia", "device_ids": [*made.gpus], "capabilities": ["gpu"]}
        found["deploy"] = {"resources": {"reservations": {"devices": [gpus]}}}
    found["volumes"] = [
        {
            "type": "bind",
            "source": str(mount.folder),
            "target": str(mount.folder),
            "read_only": mount.read_only,
        }
        for mount in made.mounts
    ]
    if made.health and engine.checks_health:
        often = {name.replace("-", "_"): value for name, value in made.health.often.items()}
        test = ["CMD-SHELL", made.health.command]
        found["healthcheck"] = {"test": test, **often, "retries": int(often["retries"])}
    return {**found, "command": [*made.command]}
