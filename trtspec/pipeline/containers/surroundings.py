"""Reads the facts about this machine that docker and podman do not report themselves."""

from __future__ import annotations

import os
import pwd
import resource
import shutil
from dataclasses import dataclass
from pathlib import Path

from trtspec.pipeline.containers.cdi import find_devices

# Either program lets `docker run --gpus` work, whether or not docker has a runtime named nvidia.
_CONTAINER_TOOLKIT = ("nvidia-container-runtime-hook", "nvidia-ctk")
_CAP_SYS_RESOURCE = 24
# What sd_booted(3) and loginctl(1) look at.
_SYSTEMD, _LINGER = Path("/run/systemd/system"), Path("/var/lib/systemd/linger")


@dataclass(frozen=True, slots=True)
class ContainerHost:
    """This user and this machine."""

    uid: int
    gid: int
    memlock: int
    """The bytes that a process of this user may be allowed to lock at most; -1 for any."""
    has_toolkit: bool
    """True if NVIDIA's container toolkit is on PATH."""
    devices: frozenset[str]
    """The GPUs of CDI."""
    has_systemd: bool
    """True if systemd runs this machine."""
    has_session: bool
    """True if this user has a systemd."""
    lingers: bool
    """True if the user's systemd stays when the user has logged out."""


def find_surroundings() -> ContainerHost:
    """Reads these facts."""
    uid, limit = os.getuid(), resource.getrlimit(resource.RLIMIT_MEMLOCK)[1]
    is_free = limit == resource.RLIM_INFINITY or _may_raise_limits()
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{uid}")
    return ContainerHost(
        uid=uid,
        gid=os.getgid(),
        memlock=-1 if is_free else limit,
        has_toolkit=any(map(shutil.which, _CONTAINER_TOOLKIT)),
        devices=find_devices(),
        has_systemd=_SYSTEMD.is_dir(),
        has_session=(runtime / "systemd/private").exists(),
        lingers=(_LINGER / _name(uid)).exists(),
    )


def _may_raise_limits() -> bool:
    """Says whether this process has CAP_SYS_RESOURCE, which root in a container usually has not."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    effective = next(line.split()[1] for line in status.splitlines() if line.startswith("CapEff:"))
    return bool(int(effective, 16) >> _CAP_SYS_RESOURCE & 1)


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
