"""`trtspec serve`, where it cannot begin, or nobody is there yet."""

from __future__ import annotations

import socket
import subprocess
import sys
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from tests.support.command_line import trtspec
from tests.support.ports import free_port

URL = "http://127.0.0.1:1"


@pytest.mark.parametrize("url", ["grpc://host:8001", "http://", "http://[::1", "http://h:99999/"])
def test_the_url_is_one_of_http(url: str) -> None:
    said = trtspec("serve", "--url", url)
    assert (said.returncode, "http://host:8000" in said.stderr) == (2, True)


@pytest.mark.parametrize(("text", "problem"), [(None, "No such file"), ("# none\n", "has no key")])
def test_keys_must_be_there(tmp_path: Path, text: str | None, problem: str) -> None:
    file = tmp_path / "keys"
    if text is not None:
        file.write_text(text)
    said = trtspec("serve", "--url", URL, "--api-keys", file)

    assert said.returncode == 1
    assert f"error: {file}: {problem}" in said.stderr
    assert "one API key per line" in said.stderr


def test_a_folder_without_a_tokenizer_is_named(tmp_path: Path) -> None:
    said = trtspec("serve", "--url", URL, "--tokenizer", tmp_path)
    assert said.returncode == 1
    assert f"error: {tmp_path}/tokenizer.json: no such file" in said.stderr


def test_a_taken_port_is_named_with_the_option_for_another() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = trtspec("serve", "--url", URL, "--port", port)
    assert said.returncode == 1
    assert f"error: 127.0.0.1:{port}: the port is in use" in said.stderr
    assert "choose another: --port" in said.stderr


def test_a_server_that_is_not_there_yet_is_a_warning() -> None:
    port = free_port()
    command = [sys.executable, "-m", "trtspec", "serve", "--url", URL, "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as serving:
        try:
            with closing(HTTPConnection("127.0.0.1", port, timeout=240)) as line:
                assert serving.stderr is not None
                said = [serving.stderr.readline() for _ in range(2)]
                line.request("GET", "/health")
                status = line.getresponse().status
        finally:
            serving.terminate()
            serving.communicate(timeout=240)
    assert said[0].startswith(f"warning: {URL}/v2/models/speculative_llm/ready: ")
    assert said[0].endswith("; requests fail until the model is ready there\n")
    assert said[1].startswith(f"in front of speculative_llm at {URL}; ")
    assert (status, serving.returncode) == (503, 0)


def test_keys_without_the_api_are_a_mistake(tmp_path: Path) -> None:
    said = trtspec("deploy", tmp_path / "recipe.yaml", "--no-openai", "--api-keys", tmp_path / "keys")
    assert (said.returncode, "--api-keys" in said.stderr) == (2, True)
