"""`trtspec deploy --detach` on this machine: a server that outlives its command, found by its name."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import IN_PROCESS, TRTSPEC


def run(*words: object, status: int = 0) -> tuple[str, str]:
    # There is no docker, and nothing of it is needed.
    environment = {**os.environ, "PATH": f"{TRTSPEC.parent}:/usr/bin:/bin", "TRTSPEC_CONTAINERS": "docker"}
    said = subprocess.run(
        [TRTSPEC, *map(str, words)], env=environment, capture_output=True, text=True, check=False
    )
    assert said.returncode == status, said.stdout + said.stderr
    return said.stdout, said.stderr


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@IN_PROCESS
def test_a_server_is_left_running_and_shown_asked_and_stopped(tiny_recipe: Path, build_copy: Path) -> None:
    command = ("deploy", tiny_recipe, "--output", build_copy, "--detach", "--port")
    shown, said = run(*command, "any")
    try:
        addresses = dict(line.split()[:2] for line in shown.splitlines() if line.split()[1:])
        (server,) = json.loads(run("deploy", "status", "--json")[0])
        assert (server["state"], server["openai"]) == ("ready", addresses["OpenAI"])
        assert f"trtspec deploy stop {server['name']} stops it" in said
        first, *lines = run("deploy", "status")[0].splitlines()
        assert first == f"{server['name']}  ready"
        assert [line.split()[0] for line in lines] == ["model", "OpenAI's", "build", "since"]
        assert all(line.count("http://") <= 1 for line in lines)
        for url in (addresses["OpenAI"], addresses["gRPC"], addresses["HTTP"]):
            assert run("generate", "--url", url, "--max-tokens", "2", "import ")[0]
        # Of a server of this machine all ports are known, also where they are not one after the other.
        _, said = run("generate", "--url", addresses["metrics"].removesuffix("/metrics"), "a", status=1)
        assert "that is Triton's metrics port" in said
        assert f"--url {addresses['HTTP'].partition('/v2')[0]}" in " ".join(said.split())
        log, said = run("deploy", "logs", server["name"])
        assert "Started HTTPService" in log
        assert said == ""
        taken = addresses["gRPC"].rpartition(":")[2]
        _, said = run(*command, str(int(taken) - 1), status=1)
        assert f"127.0.0.1:{taken}" in said.partition(": the ports are in use")[0]
    finally:
        run("deploy", "stop")
    assert "nothing is deployed here" in run("deploy", "status")[1]
    assert "nothing is deployed here" in run("deploy", "stop", status=1)[1]
