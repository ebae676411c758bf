"""The servers that deploy tells other commands of, by processes that hold their files and die."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from trtspec.base.errors import UnavailableError
from trtspec.client.local_server import LocalServer, find_servers, forget, is_starting, one_address
from trtspec.deployment.container import labels_of
from trtspec.deployment.deployment import Deployment
from trtspec.gateway.ports import Ports
from trtspec.pipeline.containers.state import State

TINY = LocalServer(
    name="tiny-1",
    build="/build/tiny",
    model="speculative_llm",
    url="http://127.0.0.1:1/v2/models/speculative_llm",
    ready="http://127.0.0.1:1/v2/models/speculative_llm/ready",
    metrics="http://127.0.0.1:3/metrics",
    grpc="127.0.0.1:2",
    openai=None,
    created="2026-01-01T00:00:00+00:00",
)
DEPLOY = """
import os, sys
from trtspec.client.local_server import LocalServer
with LocalServer(**eval(sys.argv[1]), process=os.getpid()).announced():
    print(flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


@contextmanager
def deploying(server: LocalServer) -> Iterator[subprocess.Popen[bytes]]:
    """A process that tells of a server until its stdin is closed, or it is killed."""
    values = repr({name: value for name, value in asdict(server).items() if name != "process"})
    command = [sys.executable, "-c", DEPLOY, values]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


def files(state: Path) -> list[Path]:
    return [path for path in state.rglob("*") if path.is_file()]


def test_a_server_is_found_only_while_its_deploy_runs(state: Path) -> None:
    with deploying(TINY) as process:
        assert find_servers() == [replace(TINY, process=process.pid)]
        assert one_address(lambda server: server.grpc) == "127.0.0.1:2"
        assert one_address(lambda server: server.openai) is None
        process.communicate()
        assert find_servers() == []
        assert files(state) == []


def test_files_of_a_killed_deploy_are_removed_and_name_no_server(state: Path) -> None:
    with deploying(TINY) as process:
        process.kill()
        process.wait()
        assert files(state)
        assert find_servers() == []
        assert files(state) == []


def test_several_are_listed(state: Path) -> None:
    other = replace(TINY, name="other-7", grpc="127.0.0.1:9", build="/build/other")
    with ExitStack() as stack:
        for server in (TINY, other):
            stack.enter_context(deploying(server))
        with pytest.raises(UnavailableError) as caught:
            one_address(lambda server: server.grpc)
        assert caught.value.repair == "name one: --url 127.0.0.1:9 (other-7), --url 127.0.0.1:2 (tiny-1)"
        assert one_address(lambda server: server.grpc, lambda it: it.build == "/build/tiny") == "127.0.0.1:2"
        said = trtspec("generate", "a")
        assert (said.returncode, said.stderr.splitlines()[0]) == (1, "error: this machine: runs 2 servers")


def test_deploy_shows_and_stops_what_is_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.deployment.container.find_states", lambda *_: [])
    with deploying(TINY) as process:
        assert json.loads(trtspec("deploy", "status", "--json").stdout) == [
            {
                "name": "tiny-1",
                "state": "starting",
                "restarts": "",
                "url": TINY.url,
                "openai": "",
                "openai_state": "",
                "build": "/build/tiny",
                "image": "",
                "created": TINY.created,
            }
        ]
        said = trtspec("deploy", "stop")
        assert (said.returncode, said.stderr) == (0, "tiny-1: stopped\n")
        assert process.wait() == -signal.SIGTERM
        assert trtspec("deploy", "status").stderr.startswith("nothing is deployed here")


def test_stop_ends_the_deploy_that_a_container_belongs_to(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment("tiny", Path(TINY.build), TINY.model, ports=Ports(1, 2, 3))
    assert deployment.url == TINY.url
    container = State("0123", "trtspec-tiny", "i", True, 0, "", "", 0, False, labels_of(deployment))
    monkeypatch.setattr("trtspec.deployment.container.find_states", lambda *_: [container])
    with deploying(TINY) as process:
        assert trtspec("deploy", "stop").stderr == "trtspec-tiny: stopped\n"
        assert process.wait() == -signal.SIGTERM


def test_a_container_that_was_left_counts_while_it_takes_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ready = f"http://127.0.0.1:{listener.getsockname()[1]}/health"
        left = replace(TINY, name="trtspec-tiny-0a1b2c3d", ready=ready)
        left.leave()
        assert find_servers() == [left]
    assert find_servers() == []
    forget(left.name)


def test_a_home_that_cannot_be_written_to_is_no_reason_not_to_serve(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (state / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(state / "file"))
    with TINY.announced():
        assert find_servers() == []


def test_a_server_starts_while_its_deploy_runs_and_it_is_not_ready() -> None:
    """Nobody answers at its address; `generate --wait` waits as long as that is so."""
    with deploying(TINY):
        assert is_starting(TINY.grpc or "")
        assert not is_starting("127.0.0.1:9")
    assert not is_starting(TINY.grpc or "")
