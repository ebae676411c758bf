"""What docker's daemon can do on this machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from dataclasses import KW_ONLY, dataclass

from trtspec.docker.command import DOCKER, TOOLKIT, explained, missing
from trtspec.errors import UnavailableError

_TIMEOUT_S = 5
# Either program lets `docker run --gpus` work, whether or not docker has a runtime named nvidia.
_CONTAINER_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk")


@dataclass(frozen=True, slots=True)
class Daemon:
    """Docker's daemon: `version` is None if it does not answer, and `silence` is then the reason.

    `gpus` is whether containers can have GPUs, `rootless` whether root in one is the user of the daemon.
    """

    version: str | None
    _: KW_ONLY
    gpus: bool = False
    rootless: bool = False
    silence: UnavailableError | None = None


def find_daemon() -> Daemon | None:
    """Returns what docker says of its daemon; None where there is no docker."""
    executable = shutil.which(DOCKER)
    if executable is None:
        return None
    command = [executable, "info", "--format", "{{json .}}"]
    try:
        result = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
        )
        info = json.loads(result.stdout)
        version, runtimes = info.get("ServerVersion"), info.get("Runtimes") or {}
        security = info.get("SecurityOptions") or []
    except subprocess.TimeoutExpired:
        return Daemon(None, silence=UnavailableError(DOCKER, f"the daemon was silent for {_TIMEOUT_S} s"))
    except (OSError, ValueError, AttributeError):
        return Daemon(None, silence=UnavailableError(DOCKER, "docker info does not say what is there"))
    if not version:
        return Daemon(None, silence=explained(result.stderr))
    has_gpus = "nvidia" in runtimes or any(map(shutil.which, _CONTAINER_TOOLKIT))
    return Daemon(version, gpus=has_gpus, rootless="name=rootless" in security)


def container_user(daemon: Daemon | None) -> str | None:
    """Returns the user to run a container as, so that this user owns its files.

    It is "uid:gid", or None for the image's root.
    """
    return None if daemon and daemon.rootless else f"{os.getuid()}:{os.getgid()}"


def obstacle(daemon: Daemon | None, *, needs_gpus: bool) -> UnavailableError | None:
    """Returns why no container of NVIDIA's image can run here, None if one can."""
    if daemon is None:
        return missing()
    if daemon.silence:
        return daemon.silence
    if needs_gpus and not daemon.gpus:
        return UnavailableError(DOCKER, "containers get no GPUs here", TOOLKIT)
    return None
