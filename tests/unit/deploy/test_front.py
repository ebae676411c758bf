"""The front with clients that are in no hurry, or gone; Triton is not asked."""

from __future__ import annotations

import logging
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trtspec.deploy import front as module
from trtspec.deploy.front import Front

HOST = "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as free:
        port = free.getsockname()[1]
    front = Front(HOST, port)
    front.start()
    front.open(port=1)
    yield port
    front.close()


def test_a_client_that_leaves_within_its_body_is_no_error_of_ours(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        line = socket.create_connection((HOST, port))
        line.sendall(b"POST /v2/models/m/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{")
        # A reset instead of an end.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()

    with socket.create_connection((HOST, port)) as line:
        line.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: x\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 403 ")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("said", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: "])
def test_who_asks_nothing_is_not_waited_for(port: int, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.2)
    with socket.create_connection((HOST, port), timeout=10) as line:
        line.sendall(said)
        with suppress(ConnectionResetError):
            assert line.recv(100) == b""


def test_who_has_asked_may_stay(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HEAD_S", 0.2)
    with socket.create_connection((HOST, port), timeout=10) as line:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            line.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: x\r\n\r\n")
            assert line.recv(1000).startswith(b"HTTP/1.1 403 ")
