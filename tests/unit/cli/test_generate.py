"""`trtspec generate` where nobody serves or answers, and where another backend of Triton's does."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.triton_grpc import TritonModel, served
from tests.support.command_line import trtspec
from tests.support.ports import free_port
from trtspec.client import client as clients
from trtspec.client import http
from trtspec.client.client import Client
from trtspec.client.endpoint import TimedAnswer


def test_a_model_of_the_vllm_backend_is_asked_by_http() -> None:
    with served(TritonModel(inputs=("text_input", "stream", "sampling_parameters"))) as url:
        said = trtspec("generate", "--url", url, "a")
    assert said.returncode == 1
    assert "Triton's vLLM backend" in said.stderr
    assert "--url http://127.0.0.1:8000" in " ".join(said.stderr.split())


class SilentModel(TritonModel):
    """Is ready, and answers no request."""

    def ModelStreamInfer(self, requests: Any, context: Any) -> Iterator[Any]:
        has_left = threading.Event()
        context.add_callback(has_left.set)
        has_left.wait(240)
        yield from ()


def test_an_answer_that_does_not_come_is_given_up() -> None:
    with served(SilentModel()) as url:
        said = trtspec("generate", "--timeout", "1", "--url", url, "a")
    assert said.returncode == 1
    assert "the answer is not complete after 1 s, so it is given up" in " ".join(said.stderr.split())
    assert "--timeout" in said.stderr


class SilentApi(BaseHTTPRequestHandler):
    """Has a model, and answers no request."""

    has_left = threading.Event()

    def do_GET(self) -> None:
        body = b'{"object": "list", "data": [{"id": "m", "object": "model"}]}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        self.has_left.wait(240)

    def log_message(self, *_: object) -> None: ...


def test_an_answer_of_an_api_that_does_not_come_is_given_up() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), SilentApi) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/v1"
        said = trtspec("generate", "--timeout", "1", "--url", url, "a")
        SilentApi.has_left.set()
        server.shutdown()
    assert said.returncode == 1
    assert "the answer is not complete after 1 s, so it is given up" in " ".join(said.stderr.split())


def test_a_port_that_takes_connections_and_says_nothing_is_no_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http, "_LOOK_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        said = trtspec("generate", "--url", f"127.0.0.1:{silent.getsockname()[1]}", "a")
    assert said.returncode == 1
    assert "does not answer" in said.stderr


def test_a_prompt_comes_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    heard: list[str] = []

    def hear(client: Client, prompt: str, **options: Any) -> TimedAnswer:
        heard.append(prompt)
        return TimedAnswer(sent=0.0)

    monkeypatch.setattr(Client, "generate", hear)
    monkeypatch.setattr("sys.stdin", StringIO("def fib(\n    n"))
    for prompt in ("-", "--"):
        assert trtspec("generate", "--url", "http://127.0.0.1:1/v1", "--", prompt).returncode == 0
    assert heard == ["def fib(\n    n", "--"]


def test_nobody_serves_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    grpc_port, api_port = free_port(), free_port()
    monkeypatch.setattr(clients, "GRPC", grpc_port)
    monkeypatch.setattr(clients, "OPENAI", api_port)
    monkeypatch.setattr(clients, "API", f"http://127.0.0.1:{api_port}/v1")
    said = trtspec("generate", "a")
    assert said.returncode == 1
    assert f"nobody listens on port {grpc_port}, Triton's gRPC, or {api_port}" in " ".join(
        said.stderr.split()
    )
    assert "trtspec deploy RECIPE" in " ".join(said.stderr.split())
