"""`trtspec deploy --container` where podman is and docker is not, with a stand-in that runs a real Triton."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import IN_PROCESS, Until, refused
from tests.e2e.in_docker import Deploying, Docker
from tests.e2e.openai_requests import complete
from tests.e2e.test_deploy_death import target_process
from tests.fakes import infos


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[Docker]:
    """Of a user, without systemd."""
    podman = Docker(tmp_path / "machine", podman=True)
    (podman.daemon.folder / "no_systemd").touch()
    yield podman
    for name in podman.names():
        subprocess.run([podman.daemon.client, "rm", "--force", "--time", "0", name], env=podman.environment)


@pytest.mark.sweep
@IN_PROCESS
def test_one_that_is_left_running_is_seen_started_again_and_stopped(
    docker: Docker, deploy: Deploying, until: Until
) -> None:
    deployed = deploy("--detach", with_api=True)
    assert deployed.ended() == 0, deployed.said.read_text()
    (name,) = docker.names()
    assert f"its log: trtspec deploy logs {name} --follow" in deployed.said.read_text()
    assert complete(deployed.api, "import ") == deployed.generate("import ", max_tokens=2)

    def status() -> dict[str, str]:
        (found,) = json.loads(docker.trtspec("deploy", "status", "--json").stdout)
        return dict(found)

    assert (status()["name"], status()["state"], status()["restarts"]) == (name, "ready", "0")
    first = deployed.server_pids()

    os.kill(target_process(deployed), signal.SIGKILL)

    until(lambda: not first & deployed.server_pids(), "the end of the first server")
    until(lambda: status()["state"] == "ready", "the server ready again")
    assert status()["restarts"] == "1"
    assert deployed.generate("import ", max_tokens=2)
    assert docker.trtspec("deploy", "stop").returncode == 0
    assert docker.names() == []
    until(lambda: not deployed.server_pids(), "the end of the server")
    assert "nothing is deployed here" in docker.trtspec("deploy", "status").stderr


@pytest.mark.sweep
@IN_PROCESS
def test_one_that_dies_while_it_starts_is_not_waited_for(
    docker: Docker, deploy: Deploying, build_copy: Path
) -> None:
    """Though podman, which was told to, starts it again."""
    (build_copy / "target/engine/rank0.safetensors").write_bytes(b"broken")
    deployed = deploy("--detach")

    assert deployed.ended() == 1
    said = deployed.said.read_text()
    assert "did not load: " in said
    assert f"{build_copy}/target/engine/rank0.safetensors: " in said
    assert docker.names() == []
    assert len(docker.daemon.calls("run")) == 1


@IN_PROCESS
class TestRefusals:
    def test_no_subordinate_ids(self, docker: Docker, build_copy: Path) -> None:
        docker.daemon.info(json.dumps(infos.PODMAN_WITHOUT_IDS))
        said = refused(build_copy, "--container", environment=docker.environment)
        assert "error: podman: this user has no subordinate ids" in said
        assert "podman system migrate" in said

    def test_podman_of_another_machine(self, docker: Docker, build_copy: Path) -> None:
        docker.daemon.info(json.dumps(infos.PODMAN_ELSEWHERE))
        assert "its containers run on another machine" in refused(
            build_copy, "--container", environment=docker.environment
        )

    def test_deploy_refuses_an_image_that_podman_cannot_pull(self, docker: Docker, build_copy: Path) -> None:
        docker.daemon.images()
        (docker.daemon.folder / "unknown_image").touch()
        said = refused(build_copy, "--container", environment=docker.environment)
        assert "cannot be pulled: initializing source docker://" in said
        assert "hint: run podman pull " in said
