"""A client that leaves takes its work with it."""

from __future__ import annotations

import json
import socket
import time

LONG = {"text_input": "class Long:\n", "max_tokens": 900, "end_id": -1, "stream": True}


def test_closing_a_grpc_stream_ends_the_request(server, until):
    client = server.client()
    responses = client.generate({**LONG, "temperature": 1.0})
    next(responses)
    until(lambda: server.metric("num_requests_running") == 1, "one request running")
    start = time.monotonic()

    responses.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    assert time.monotonic() - start < _long_s(server) / 2
    assert list(client.generate({"text_input": "a", "max_tokens": 2}))
    client.close()


def test_hanging_up_on_generate_stream_ends_the_request(server, until):
    body = json.dumps({**LONG, "temperature": 1.0})
    head = f"POST /v2/models/{server.model}/generate_stream HTTP/1.1\r\nContent-Length: {len(body)}\r\n\r\n"
    line = socket.create_connection(("127.0.0.1", server.ports[0]), timeout=30)
    line.sendall((head + body).encode())
    assert b"200" in line.recv(4096)
    until(lambda: server.metric("num_requests_running") == 1, "one request running")
    start = time.monotonic()

    line.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    assert time.monotonic() - start < _long_s(server) / 2


def _long_s(server) -> float:
    """How long the whole completion takes."""
    start = time.monotonic()
    server.generate(prompt=LONG["text_input"], max_tokens=900, end_id=-1, temperature=1.0)
    return time.monotonic() - start
