"""Finds the program that runs containers on this machine, docker or podman, and its peculiarities here."""

from __future__ import annotations

import json
import os
import pwd
import resource
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.base import yaml11
from trtspec.base.errors import UnavailableError
from trtspec.pipeline.containers.dialect import NO_SUBORDINATES
from trtspec.pipeline.containers.program import CHOICE, Program, find_program

KIND = "nvidia.com/gpu"
FOLDERS = (Path("/etc/cdi"), Path("/var/run/cdi"))
"""Where podman looks, unless containers.conf says otherwise."""


def find_devices(folders: Sequence[Path] = FOLDERS) -> frozenset[str]:
    """Returns the names of NVIDIA's devices; a file that cannot be read has none, as podman sees it.

    The Container Device Interface is how podman gives devices to containers; `nvidia-ctk cdi generate` writes
    the specifications (github.com/cncf-tags/container-device-interface, SPEC.md). A GPU's name there is its
    number, its UUID, or in older ones `gpu` and its number.
    """
    names: set[str] = set()
    for folder in folders:
        for file in sorted(folder.glob("*")) if folder.is_dir() else ():
            if file.suffix in (".yaml", ".json"):
                names |= _names(file)
    return frozenset(names)


def _names(file: Path) -> set[str]:
    try:
        content = yaml11.load(file.read_text(encoding="utf-8"))
        return {str(device["name"]) for device in content["devices"]} if content["kind"] == KIND else set()
    except (OSError, ValueError, KeyError, TypeError, yaml11.YAMLError):
        return set()


# A daemon answers at once; podman reads its images first, which may be on a slow disk.
_DAEMON_S, _PODMAN_S = 5, 20
_ROOT = "0:0"

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


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """Docker or podman, with its peculiarities on this machine."""

    program: Program
    version: str | None
    """None if it is missing or does not answer."""
    _: KW_ONLY
    is_installed: bool = True
    obstacle: UnavailableError | None = None
    """The reason why no container can run; None if one can."""
    user: str = _ROOT
    """The user that a container runs as, "uid:gid", so that this user owns its files."""
    memlock: int | None = -1
    """The bytes that a container may lock; -1 for any, None if that is for the daemon to say."""
    gpus: bool = False
    """True if containers can have GPUs."""
    devices: frozenset[str] = frozenset()
    """The names by which podman knows the GPUs."""
    rootless: bool = False
    """True if root in a container is this user."""
    may_remap: bool = False
    """True if a container may get a user namespace of its own unless an option forbids it."""
    labels: bool = False
    """True if SELinux keeps containers from files without their label."""
    checks_health: bool = True
    """True if health checks are run."""
    ends_at_logout: bool = False
    """True if containers end with this user's last session."""
    store: str = ""
    """The storage driver; "" if it is not reported."""
    cgroups: str = ""
    """The version of cgroups; "" if it is not reported."""

    def obstacle_to(self, *, gpus: bool) -> UnavailableError | None:
        """Returns why no container of NVIDIA's image, with GPUs or without, can run here; None if one can."""
        if self.obstacle is None and gpus and not self.gpus:
            repair = self.program.dialect.no_gpus
            return UnavailableError(self.program.name, "containers get no GPUs here", repair)
        return self.obstacle


def find_engine() -> ContainerEngine:
    """Returns what docker, or podman, says of itself."""
    program, here = find_program(), find_surroundings()
    try:
        executable = program.executable()
    except UnavailableError as error:
        return replace(_silent(program, here, error), is_installed=False)
    command = [executable, "info", "--format", "{{json .}}"]
    patience = _DAEMON_S if program.dialect.is_daemon else _PODMAN_S
    try:
        result = subprocess.run(  # noqa: S603
            command, capture_output=True, text=True, timeout=patience, check=False
        )
        info = json.loads(result.stdout) if result.stdout.strip() else {}
        engine = read_info(program, info, here)
    except subprocess.TimeoutExpired:
        problem = f"{program.name} info did not answer within {patience} s"
        return _silent(program, here, UnavailableError(program.name, problem))
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        problem = f"{program.name} info gave no usable output"
        return _silent(program, here, UnavailableError(program.name, problem))
    if engine.version is None:
        return _silent(program, here, program.explained(result.stderr))
    return engine


def read_info(program: Program, info: Mapping[str, Any], here: ContainerHost) -> ContainerEngine:
    """Returns what the JSON of `docker info` or of `podman info` tells; pure.

    The keys are those of moby's api/types/system/info.go and of podman's libpod/define/info.go. Raises
    KeyError and its like for JSON that is neither.
    """
    return (_docker if program.dialect.is_daemon else _podman)(program, info, here)


def _docker(program: Program, info: Mapping[str, Any], here: ContainerHost) -> ContainerEngine:
    options = {option.partition(",")[0] for option in info.get("SecurityOptions") or []}
    rootless = "name=rootless" in options
    obstacle = None
    # Docker always names a driver, and the service of podman never does (its compat/info.go).
    if info.get("LoggingDriver") == "":
        problem = "its command line talks to podman here, which would ignore the GPUs"
        obstacle = UnavailableError(program.name, problem, f"unset DOCKER_HOST, and set {CHOICE}=podman")
    return ContainerEngine(
        program,
        info.get("ServerVersion") or None,
        obstacle=obstacle,
        user=_ROOT if rootless else f"{here.uid}:{here.gid}",
        memlock=None if rootless else -1,
        gpus="nvidia" in (info.get("Runtimes") or {}) or here.has_toolkit,
        rootless=rootless,
        may_remap="name=userns" in options,
        labels="name=selinux" in options,
        ends_at_logout=rootless and here.has_systemd and not here.lingers,
        store=info.get("Driver") or "",
        cgroups=info.get("CgroupVersion") or "",
    )


def _podman(program: Program, info: Mapping[str, Any], here: ContainerHost) -> ContainerEngine:
    if not info:
        return ContainerEngine(program, None)
    host, store = info["host"], info["store"]
    rootless = host["security"]["rootless"]
    users = sum(part["size"] for part in (host.get("idMappings") or {}).get("uidmap") or [])
    obstacle = None
    if host.get("serviceIsRemote"):
        problem = "its containers run on another machine, which does not have these files"
        obstacle = UnavailableError(program.name, problem, "unset CONTAINER_HOST, or run trtspec there")
    elif rootless and users <= 1:
        obstacle = UnavailableError(program.name, *NO_SUBORDINATES)
    return ContainerEngine(
        program,
        info["version"]["Version"],
        obstacle=obstacle,
        # Root of a rootless container is this user, and podman with root's containers is run by root. Another
        # user in there (keep-id) would have podman copy an image of 20 GB and more to change its owners.
        user=_ROOT,
        # Without a daemon the limit of this process is that of its containers.
        memlock=here.memlock,
        gpus=bool(here.devices),
        devices=here.devices,
        rootless=rootless,
        # PODMAN_USERNS or containers.conf may say so.
        may_remap=True,
        labels=host["security"].get("selinuxEnabled", False),
        checks_health=here.has_systemd and (here.has_session or not rootless),
        ends_at_logout=rootless and here.has_systemd and not here.lingers,
        store=store["graphDriverName"],
        cgroups=host["cgroupVersion"].removeprefix("v"),
    )


def _silent(program: Program, here: ContainerHost, why: UnavailableError) -> ContainerEngine:
    user = f"{here.uid}:{here.gid}" if program.dialect.is_daemon else _ROOT
    return ContainerEngine(program, None, obstacle=why, user=user, may_remap=not program.dialect.is_daemon)
