"""Servers in containers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.ports import free_ports
from trtspec.base.errors import UnavailableError
from trtspec.deployment.container import LABEL, container_of, serve_container
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.triton.launch import TritonLaunch
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

INTERRUPTED = """#!/bin/sh
cd {folder}
case "$1" in
run) echo "$@" >made; kill -INT $PPID; sleep 1 ;;
container) echo 'Error: no such container' >&2; exit 125 ;;
rm) for name; do :; done; grep -qe "--name $name " made && rm made ;;
esac
"""


def podman(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Puts a stand-in for podman on PATH, whose container is the file `made`."""
    (folder / "build").mkdir()
    commands = folder / "bin"
    commands.mkdir()
    command = commands / "podman"
    command.write_text(script.format(folder=folder))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{commands}:/usr/bin:/bin")


def start(folder: Path) -> None:
    """Starts the container of a deployment, and ends it."""
    deployment = Deployment("pair", folder / "build", "pair", ports=Ports(*free_ports()))
    launch, engine = TritonLaunch(), ContainerEngine(Program("podman", PODMAN), "4.3.1")
    made = container_of(deployment, launch, "image", ())
    with serve_container(deployment, launch, made, engine, detach=False) as begin:
        begin()


@pytest.mark.parametrize(("owner", "is_left"), [("ours", False), ("theirs", True)])
def test_a_container_that_failed_to_start_is_removed_only_if_it_is_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, is_left: bool
) -> None:
    podman(tmp_path, SCRIPT, monkeypatch)
    labels = {f"{LABEL}.build": str(tmp_path / "build" if owner == "ours" else tmp_path)}
    state = {
        "Id": "0123",
        "Name": "x",
        "Created": "",
        "RestartCount": 0,
        "Config": {"Image": "image", "Labels": labels},
        "State": {"Running": False, "ExitCode": 0, "Restarting": False},
    }
    (tmp_path / "state.json").write_text(json.dumps([state]))

    with pytest.raises(UnavailableError) as caught:
        start(tmp_path)

    assert caught.value.problem == "containers get no GPUs here"
    assert (tmp_path / "made").exists() == is_left


def test_a_container_is_removed_when_an_interrupt_comes_before_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman(tmp_path, INTERRUPTED, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path)
    assert not (tmp_path / "made").exists()
