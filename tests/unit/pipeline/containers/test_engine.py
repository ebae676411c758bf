"""What docker and podman say of themselves, here and elsewhere; `tests/fakes/infos.py` has the sources."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import infos
from trtspec.pipeline.containers.dialect import DOCKER, PODMAN, Dialect
from trtspec.pipeline.containers.engine import (
    ContainerEngine,
    ContainerHost,
    find_devices,
    find_engine,
    find_surroundings,
    read_info,
)
from trtspec.pipeline.containers.oddities import describe, oddities
from trtspec.pipeline.containers.program import Program

HERE = ContainerHost(
    uid=1000,
    gid=1001,
    memlock=1 << 16,
    has_toolkit=False,
    devices=frozenset({"0"}),
    has_systemd=True,
    has_session=True,
    lingers=True,
)


def read(dialect: Dialect, info: dict[str, Any], here: ContainerHost = HERE) -> ContainerEngine:
    return read_info(Program(dialect.name, dialect), info, here)


@pytest.mark.parametrize(
    ("dialect", "info", "user"),
    [
        (DOCKER, infos.DOCKER, "1000:1001"),
        # With `--userns host` the user is the user.
        (DOCKER, infos.DOCKER_REMAPS, "1000:1001"),
        (DOCKER, infos.DOCKER_LABELS, "1000:1001"),
        (DOCKER, infos.DOCKER_OF_USER, "0:0"),
        (PODMAN, infos.PODMAN_OF_USER, "0:0"),
        (PODMAN, infos.PODMAN_ON_FEDORA, "0:0"),
    ],
)
def test_files_that_a_container_writes_belong_to_the_user(
    dialect: Dialect, info: dict[str, Any], user: str
) -> None:
    assert read(dialect, info).user == user


def test_users_are_mapped_only_where_they_may_be() -> None:
    """PODMAN_USERNS and containers.conf are asked by podman alone."""
    assert not read(DOCKER, infos.DOCKER).may_remap
    assert not read(DOCKER, infos.DOCKER_OF_USER).may_remap
    assert read(DOCKER, infos.DOCKER_REMAPS).may_remap
    assert read(PODMAN, infos.PODMAN_OF_USER).may_remap


@pytest.mark.parametrize(
    ("dialect", "info", "labels"),
    [
        (DOCKER, infos.DOCKER, False),
        (DOCKER, infos.DOCKER_LABELS, True),
        (PODMAN, infos.PODMAN_OF_USER, False),
        (PODMAN, infos.PODMAN_ON_FEDORA, True),
    ],
)
def test_selinux(dialect: Dialect, info: dict[str, Any], labels: bool) -> None:
    assert read(dialect, info).labels == labels


def test_a_limit_is_one_that_may_be_given() -> None:
    """A daemon of a user has limits of its own; without one they are this process's."""
    assert read(DOCKER, infos.DOCKER).memlock == -1
    assert read(DOCKER, infos.DOCKER_OF_USER).memlock is None
    assert read(PODMAN, infos.PODMAN_OF_USER).memlock == 1 << 16
    assert read(PODMAN, infos.PODMAN_OF_ROOT, replace(HERE, uid=0, gid=0, memlock=-1)).memlock == -1


@pytest.mark.parametrize(
    ("dialect", "info", "problem", "repair"),
    [
        (PODMAN, infos.PODMAN_WITHOUT_IDS, "no subordinate ids", "usermod --add-subuids"),
        (PODMAN, infos.PODMAN_ELSEWHERE, "on another machine", "unset CONTAINER_HOST"),
        (DOCKER, infos.DOCKER_IS_PODMAN, "talks to podman", "TRTSPEC_CONTAINERS=podman"),
    ],
)
def test_a_container_engine_that_cannot_be_used_is_refused_with_a_repair(
    dialect: Dialect, info: dict[str, Any], problem: str, repair: str
) -> None:
    found = read(dialect, info).obstacle_to(gpus=False)
    assert found
    assert problem in found.problem
    assert repair in str(found.repair)


@pytest.mark.parametrize(
    ("dialect", "info", "here", "repair"),
    [
        (DOCKER, infos.DOCKER | {"Runtimes": {"runc": {}}}, HERE, "nvidia-ctk runtime configure"),
        (PODMAN, infos.PODMAN_OF_USER, replace(HERE, devices=frozenset()), "nvidia-ctk cdi generate"),
        # Podman has nothing of the toolkit's hook.
        (
            PODMAN,
            infos.PODMAN_OF_USER,
            replace(HERE, devices=frozenset(), has_toolkit=True),
            "nvidia-ctk cdi generate",
        ),
    ],
)
def test_no_gpus(dialect: Dialect, info: dict[str, Any], here: ContainerHost, repair: str) -> None:
    found = read(dialect, info, here)
    assert found.obstacle_to(gpus=False) is None
    problem = found.obstacle_to(gpus=True)
    assert problem
    assert problem.problem == "containers get no GPUs here"
    assert repair in str(problem.repair)


LOGGED_OUT = replace(HERE, has_session=False, lingers=False)
WITHOUT_SYSTEMD = replace(HERE, has_systemd=False, has_session=False, lingers=False)


@pytest.mark.parametrize(
    ("dialect", "info", "here", "subjects"),
    [
        (DOCKER, infos.DOCKER, HERE, []),
        (DOCKER, infos.DOCKER, LOGGED_OUT, []),
        (DOCKER, infos.DOCKER_REMAPS, HERE, ["user namespaces"]),
        (DOCKER, infos.DOCKER_LABELS, HERE, ["SELinux"]),
        (DOCKER, infos.DOCKER_OF_USER, LOGGED_OUT, ["logout"]),
        (PODMAN, infos.PODMAN_ON_FEDORA, HERE, ["SELinux"]),
        (PODMAN, infos.PODMAN_ON_FEDORA, LOGGED_OUT, ["SELinux", "health checks", "logout"]),
        (PODMAN, infos.PODMAN_OF_USER, WITHOUT_SYSTEMD, ["health checks", "image store", "cgroups"]),
        (PODMAN, infos.PODMAN_OF_ROOT, WITHOUT_SYSTEMD, ["health checks"]),
        (PODMAN, infos.PODMAN_OF_ROOT, LOGGED_OUT, []),
    ],
)
def test_oddities_of_each_container_engine_are_reported(
    dialect: Dialect, info: dict[str, Any], here: ContainerHost, subjects: list[str]
) -> None:
    assert [finding.subject for finding in oddities(read(dialect, info, here))] == subjects


def test_a_description() -> None:
    assert describe(read(DOCKER, infos.DOCKER)) == "29.0.1, with GPUs for containers"
    assert describe(read(PODMAN, infos.PODMAN_ON_FEDORA)) == "5.4.0, rootless, with GPUs for containers"


class TestDevices:
    """The specifications are of the form of nvidia-ctk's, of which the names alone matter."""

    def test_every_file_of_nvidias_kind(self, tmp_path: Path) -> None:
        edits = {"containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}
        nvidia = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {}}
        names = ("0", "GPU-4cf8db2d", "all")
        (tmp_path / "nvidia.yaml").write_text(
            "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"
            + "".join(f'- name: "{name}"\n  containerEdits: {{}}\n' for name in names)
        )
        (tmp_path / "more.json").write_text(json.dumps({**nvidia, "devices": [{"name": "gpu1", **edits}]}))
        (tmp_path / "amd.yaml").write_text("kind: amd.com/gpu\ndevices: [{name: '7'}]\n")
        (tmp_path / "broken.yaml").write_text("kind: [")
        (tmp_path / "empty.json").write_text("")
        (tmp_path / "nvidia.yaml.bak").write_text("kind: nvidia.com/gpu\ndevices: [{name: '8'}]\n")
        found = find_devices((tmp_path, tmp_path / "nowhere"))
        assert found == {"0", "GPU-4cf8db2d", "all", "gpu1"}


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("exit 1", "failed without a message"),
        ("echo 'not JSON'", "docker info gave no usable output"),
        ("echo '[]'", "docker info gave no usable output"),
        (
            "echo '{\"ServerVersion\": \"\"}'; echo 'Cannot connect to the Docker daemon' >&2",
            "does not answer",
        ),
    ],
)
def test_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, problem: str) -> None:
    command = tmp_path / "docker"
    command.write_text(f"#!/bin/sh\n[ $1 = info ] || exit 0\n{script}\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv("TRTSPEC_CONTAINERS", raising=False)
    found = find_engine()
    assert found.version is None
    assert found.obstacle
    assert problem in found.obstacle.problem


def test_the_surroundings_of_a_container_are_those_of_this_process() -> None:
    import os
    import resource

    here = find_surroundings()
    assert (here.uid, here.gid) == (os.getuid(), os.getgid())
    limit, another = resource.getrlimit(resource.RLIMIT_MEMLOCK)[1], here.memlock
    if another == -1 and limit != resource.RLIM_INFINITY:
        # What the kernel allows is what was said.
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit + 1))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit))
    elif limit != resource.RLIM_INFINITY:
        with pytest.raises(ValueError, match="not allowed to raise"):
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (limit, limit + 1))
