"""OpenAI's API of a container, which is a process of this machine."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from pathlib import Path

import openai
import pytest

from tests.e2e.conftest import IN_PROCESS, TRTSPEC, Until
from tests.e2e.in_docker import Deploying, Docker
from tests.e2e.openai_requests import complete
from tests.support.processes import command_lines

pytestmark = pytest.mark.sweep


@IN_PROCESS
def test_one_whose_api_hangs_or_is_gone_says_how_to_start_it(
    docker: Docker, deploy: Deploying, tmp_path: Path, until: Until
) -> None:
    """As after a restart of the machine, when docker starts its containers again, and nobody the API."""
    keys = tmp_path / "keys.txt"
    keys.write_text("sk-one\n")
    deployed = deploy("--detach", "--api-keys", str(keys), with_api=True)
    assert deployed.ended() == 0
    (api,) = [
        pid for pid, words in command_lines() if "trtspec.gateway.openai" in words and str(keys) in words[-2]
    ]
    os.kill(api, signal.SIGSTOP)
    said = docker.trtspec("deploy", "status", "--json")
    (found,) = json.loads(said.stdout)
    assert (found["state"], found["openai_state"]) == ("ready", "not answering")
    assert "is not answering, and holds its port: end it first" in said.stderr
    os.kill(api, signal.SIGKILL)
    until(lambda: api not in dict(command_lines()), "the end of the API")

    said = docker.trtspec("deploy", "status", "--json")
    (found,) = json.loads(said.stdout)
    assert (found["state"], found["openai_state"]) == ("ready", "not running")
    assert "OpenAI's API of" in said.stderr
    (line,) = [line for line in said.stderr.splitlines() if line.startswith("hint: ")]
    words = shlex.split(line.removeprefix("hint: "))
    with subprocess.Popen([TRTSPEC, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as serving:
        until(lambda: docker.trtspec("deploy", "status").stderr == "", "the API again")
        with openai.OpenAI(base_url=deployed.api, api_key="sk-one", max_retries=0) as client:
            assert client.completions.create(model=deployed.model, prompt="a", max_tokens=1).choices
        with pytest.raises(openai.AuthenticationError):
            complete(deployed.api, "a")
        serving.terminate()
    assert docker.trtspec("deploy", "stop").returncode == 0
