"""What is run on this machine, and by which command."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_ports
from trtspec.base.errors import UnavailableError
from trtspec.deployment.deploy import serve_triton, wait_for_ports
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton import install
from trtspec.deployment.triton.install import TritonInstall, find_triton
from trtspec.deployment.triton.launch import TritonLaunch
from trtspec.gateway.ports import LOOPBACK, Ports, check_free

TRITON = TritonInstall(Path("/opt/tritonserver/bin/tritonserver"))


def executable(file: Path) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)
    return str(file)


def test_the_image_comes_before_path_and_path_before_the_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(install, "IN_IMAGE", str(tmp_path / "opt/tritonserver"))
    wheel = find_triton()
    assert wheel.backends is not None
    on_path = executable(tmp_path / "bin/tritonserver")
    assert find_triton() == TritonInstall(Path(on_path))
    image = executable(tmp_path / "opt/tritonserver")
    assert find_triton() == TritonInstall(Path(image))


def test_engines_of_several_ranks_are_launched_by_mpirun() -> None:
    started = TritonLaunch(ranks=2).local(Deployment("x", Path("/build"), "model"), TRITON, gpus=2)
    mpirun = ("mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "1")
    assert started.argv[:8] == (*mpirun, str(TRITON.server))
    assert "--model-repository=/build/model_repository" in started.argv
    assert started.environment["TRTLLM_ORCHESTRATOR"] == "1"


def test_a_machine_without_mpirun_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    deployment = Deployment("x", tmp_path, "model", ports=Ports(*free_ports()))
    with (
        pytest.raises(UnavailableError, match="mpirun: is not on PATH") as caught,
        serve_triton(deployment, TritonLaunch(ranks=2), TRITON, gpus=2),
    ):
        pass
    assert "--container" in str(caught.value.repair)


@pytest.mark.parametrize(("gpus", "given"), [(0, True), (1, False)])
def test_metrics_of_gpus_are_not_asked_for_where_there_are_none(gpus: int, given: bool) -> None:
    started = TritonLaunch().local(Deployment("x", Path("/build"), "model"), TRITON, gpus)
    assert ("--allow-gpu-metrics=false" in started.argv) == given


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Deployment, socket.socket]]:
    """A deployment of which somebody has a port."""
    monkeypatch.setattr(install, "_FOLDER", tmp_path)
    ports = Ports(*free_ports())
    with socket.create_server((LOOPBACK, ports.grpc)) as holder:
        yield Deployment("x", tmp_path, "model", ports=ports), holder


def test_a_start_waits_for_the_ports_of_a_deploy_that_was_killed(
    taken: tuple[Deployment, socket.socket], tmp_path: Path
) -> None:
    deployment, holder = taken
    lock = tmp_path / "trtspec_1_00000000_lock"
    lock.touch()
    said = []

    @contextmanager
    def watch(label: str, _: int | None) -> Iterator[Any]:
        said.append(label)
        holder.close()
        yield None

    wait_for_ports(deployment, watch)

    check_free(LOOPBACK, deployment.all_ports)
    assert said == ["wait for a server that is ending"]
    # Who starts removes it.
    assert lock.exists()


def test_a_start_does_not_wait_for_the_ports_of_others(taken: tuple[Deployment, socket.socket]) -> None:
    def watch(*_: object) -> Any:
        pytest.fail("it waits")

    with pytest.raises(UnavailableError, match="in use"):
        wait_for_ports(taken[0], watch)
