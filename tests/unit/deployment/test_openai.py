"""The process of OpenAI's API is watched, and followed by another one that knows what it knew."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.conftest import TINY, wait_until
from tests.e2e.openai_requests import ask
from tests.support.ports import free_port
from tests.support.processes import command_line, command_lines
from trtspec.deployment import openai
from trtspec.deployment.deployment import Deployment
from trtspec.deployment.openai import OpenAi
from trtspec.gateway.ports import LOOPBACK, Ports


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[OpenAi]:
    monkeypatch.setattr(openai, "_ASK_S", 1.0)
    shutil.copytree(TINY / "target", tmp_path / "tokenizer", ignore=shutil.ignore_patterns("*.safetensors"))
    ports = Ports(openai=free_port())
    api = OpenAi(Deployment("x", tmp_path, "pair", ports=ports), LOOPBACK)
    api.start()
    api.shut("restarting")
    yield api
    before = process(tmp_path)
    api.close()
    assert command_line(before) == [""]


def process(build: Path) -> int:
    """The one process of the API of a build, once it runs."""

    def find() -> list[int]:
        return [
            pid
            for pid, words in command_lines()
            if "trtspec.gateway.openai" in words and str(build) in words[-2]
        ]

    (found,) = wait_until(find, "a process")
    return found


def state(api: OpenAi) -> str:
    assert api._port
    status, _, said = ask(api._port, "/health", None, "GET")
    assert status == 503
    message: str = json.loads(said)["error"]["message"]
    return message


@pytest.mark.parametrize(
    ("number", "how"),
    [
        (signal.SIGKILL, "was killed by SIGKILL"),
        pytest.param(
            signal.SIGSTOP,
            f"has not answered {openai._MOST_OWED} times in a row",
            marks=pytest.mark.sweep,
        ),
    ],
)
def test_another_process_begins(api: OpenAi, tmp_path: Path, number: int, how: str) -> None:
    wait_until(lambda: state(api) == "the server is restarting", "its state")
    first = process(tmp_path)
    wait_until(lambda: api._process.has_answered, "an answer")

    os.kill(first, number)

    assert wait_until(lambda: process(tmp_path) != first, "another process", 30)
    wait_until(lambda: state(api) == "the server is restarting", "its state")
    assert (
        f"trtspec: the process of OpenAI's API {how}; another one begins\n"
        in (tmp_path / "tritonserver.log").read_text()
    )
