"""Requests to OpenAI's API as a bad client sends them, and a server of it of one's own."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import openai

from tests.e2e.conftest import DEADLINE_S, ENDLESS, TRTSPEC, wait_until
from tests.support.ports import free_port

MODEL = "speculative_llm"
ROUTES = ("/v1/completions", "/v1/chat/completions")
GOOD: dict[str, Any] = {"model": MODEL, "max_tokens": 1, "prompt": "a"}
CHAT: dict[str, Any] = {"model": MODEL, "max_tokens": 1, "messages": [{"role": "user", "content": "a"}]}
LONG: dict[str, Any] = {"model": MODEL, "prompt": "class Long:\n", "max_tokens": ENDLESS}
LONG |= {"num_draft_tokens": 1, "ignore_eos": True}


def ask(
    port: int, path: str, body: bytes | None, method: str = "POST", **headers: str
) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=DEADLINE_S)
    try:
        given = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        connection.request(method, path, body, given)
        answer = connection.getresponse()
        return answer.status, {key.lower(): value for key, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def error_of(body: bytes) -> dict[str, Any]:
    """The object of an error, which is in OpenAI's form."""
    content = json.loads(body)
    assert content.keys() == {"error"}
    error: dict[str, Any] = content["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["message"]
    return error


def begin(port: int, body: dict[str, Any]) -> socket.socket:
    """The connection of a client that has sent a request."""
    data = json.dumps(body).encode()
    line = socket.create_connection(("127.0.0.1", port), timeout=DEADLINE_S)
    kind = f"Content-Type: application/json\r\nContent-Length: {len(data)}"
    line.sendall(f"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n{kind}\r\n\r\n".encode() + data)
    return line


@contextmanager
def serving(url: str, *options: object, said: Path) -> Iterator[int]:
    """A `trtspec serve` in front of this URL; it must end cleanly when told to."""
    port = free_port()
    with said.open("wb") as file:
        process = subprocess.Popen(
            [TRTSPEC, "serve", "--url", url, "--port", str(port), *map(str, options)],
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: process.poll() is not None or f":{port}/v1" in said.read_text(), "a server")
        assert process.poll() is None, said.read_text()
        yield port
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0, said.read_text()
        assert "Traceback" not in said.read_text(), said.read_text()[:6000]
    finally:
        process.kill()
        process.wait()


def complete(api: str, prompt: str) -> str:
    """Two tokens of the official client's."""
    with openai.OpenAI(base_url=api, api_key="none", max_retries=0) as client:
        made = client.completions.create(model=MODEL, prompt=prompt, max_tokens=2, temperature=0)
    return made.choices[0].text


def read(path: Path) -> bytes:
    """A file of a process, empty when that is gone."""
    try:
        return path.read_bytes()
    except OSError:
        return b""
