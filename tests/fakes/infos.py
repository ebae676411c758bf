"""What docker and podman have said of themselves on machines like no other here, as far as trtspec reads it.

The values are those of public reports, and the keys those of the JSON of `docker info` (moby,
api/types/system/info.go) and of `podman info` (podman, libpod/define/info.go).
"""

from __future__ import annotations

from typing import Any

_IDS = [
    {"container_id": 0, "host_id": 1000, "size": 1},
    {"container_id": 1, "host_id": 100000, "size": 65536},
]


def podman(
    version: str,
    *,
    rootless: bool,
    selinux: bool = False,
    ids: list[dict[str, int]] | None = None,
    cgroups: str = "v2",
    store: str = "overlay",
    remote: bool = False,
) -> dict[str, Any]:
    return {
        "host": {
            "cgroupVersion": cgroups,
            "idMappings": {"gidmap": ids, "uidmap": ids},
            "security": {"rootless": rootless, "selinuxEnabled": selinux},
            "serviceIsRemote": remote,
        },
        "store": {"graphDriverName": store},
        "version": {"Version": version},
    }


def docker(version: str, *security: str, driver: str = "overlay2", cgroups: str = "2") -> dict[str, Any]:
    return {
        "ServerVersion": version,
        "Driver": driver,
        "LoggingDriver": "json-file",
        "CgroupVersion": cgroups,
        "Runtimes": {"nvidia": {}, "runc": {}},
        "SecurityOptions": list(security),
    }


# Debian 12's package, run by root without systemd; read on such a machine.
PODMAN_OF_ROOT = podman("4.3.1", rootless=False, cgroups="v1")
# The same, by a user.
PODMAN_OF_USER = podman("4.3.1", rootless=True, ids=_IDS, cgroups="v1", store="vfs")
# Fedora 41 with SELinux: github.com/vllm-project/vllm/issues/12734, and podman-info.1.md for its security.
PODMAN_ON_FEDORA = podman("5.4.0", rootless=True, selinux=True, ids=_IDS)
# One user id alone: github.com/containers/podman/issues/25798.
PODMAN_WITHOUT_IDS = podman("5.4.1", rootless=True, ids=[{"container_id": 0, "host_id": 1000, "size": 1}])
# A podman machine on a Mac: github.com/containers/podman/issues/12097.
PODMAN_ELSEWHERE = podman("3.4.0", rootless=True, selinux=True, ids=_IDS, remote=True)

DOCKER = docker("29.0.1", "name=apparmor", "name=seccomp,profile=builtin", "name=cgroupns")
# github.com/docker/for-linux/issues/1259: dockerd --userns-remap, on Ubuntu 20.04.
DOCKER_REMAPS = docker("20.10.7", "name=apparmor", "name=seccomp,profile=default", "name=userns", cgroups="1")
# github.com/rancher/rancher/issues/29738: dockerd --selinux-enabled, on CentOS 7.8, which named no cgroups.
DOCKER_LABELS = docker("18.06.2-ce", "name=seccomp,profile=default", "name=selinux", cgroups="")
# docs.docker.com/engine/security/rootless, and moby's daemon/info.go.
DOCKER_OF_USER = docker("26.1.3", "name=seccomp,profile=builtin", "name=rootless", "name=cgroupns")
# Podman's service asked by docker's command line: podman, pkg/api/handlers/compat/info.go.
DOCKER_IS_PODMAN = {**docker("4.3.1", "name=seccomp,profile=default"), "LoggingDriver": ""}
