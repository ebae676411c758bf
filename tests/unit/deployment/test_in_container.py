"""A container that was made and could not be started, as podman and docker leave one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.ports import free_ports
from trtspec.base.errors import UnavailableError
from trtspec.deployment.container import LABEL
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.in_container import container, serve
from trtspec.deployment.triton_launch import TritonLaunch
from trtspec.gateway.ports import Ports
from trtspec.pipeline.containers.dialect import PODMAN
from trtspec.pipeline.containers.engine import ContainerEngine
from trtspec.pipeline.containers.program import Program

SCRIPT = """#!/bin/sh
cd {folder}
case "$1" in
run) touch made; echo 'Error: setting up CDI devices: unresolvable' >&2; exit 126 ;;
container) [ -e made ] && cat state.json && exit; echo 'Error: no such container' >&2; exit 125 ;;
rm) [ "$*" = "rm --force --time 0 0123" ] && rm made ;;
esac
"""


@pytest.mark.parametrize(("owner", "is_left"), [("ours", False), ("theirs", True)])
def test_it_is_removed_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, is_left: bool
) -> None:
    build, commands = tmp_path / "build", tmp_path / "bin"
    build.mkdir()
    commands.mkdir()
    command = commands / "podman"
    command.write_text(SCRIPT.format(folder=tmp_path))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")
    labels = {f"{LABEL}.build": str(build if owner == "ours" else tmp_path)}
    state = {
        "Id": "0123",
        "Name": "x",
        "Created": "",
        "RestartCount": 0,
        "Config": {"Image": "image", "Labels": labels},
        "State": {"Running": False, "ExitCode": 0, "Restarting": False},
    }
    (tmp_path / "state.json").write_text(json.dumps([state]))
    deployment = Deployment("pair", build, "pair", ports=Ports(*free_ports()))
    engine = ContainerEngine(Program("podman", PODMAN), "4.3.1")
    launch = TritonLaunch()
    made = container(deployment, launch, "image", ())

    serving = serve(deployment, launch, made, engine, detach=False)
    with pytest.raises(UnavailableError) as caught, serving as start:
        start()

    assert caught.value.problem == "containers get no GPUs here"
    assert (tmp_path / "made").exists() == is_left
