"""The memory of the front, in a process of its own, when large bodies have gone."""

from __future__ import annotations

import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tests.support.ports import free_ports
from tests.support.processes import numbers_of

HOST, MIB = "127.0.0.1", 1 << 20
FRONT = """
import sys
from trtspec.gateway.triton.front import Front
from trtspec.gateway.origins import Origins
from trtspec.gateway.ports import Ports

*public, triton = map(int, sys.argv[1:])
front = Front(Origins("127.0.0.1"), Ports(*public), "m", "secret")
front.start()
front.open(Ports(triton, 1, 1))
print("open", flush=True)
sys.stdin.read()
front.close()
"""


class Triton(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        left = int(self.headers["Content-Length"])
        while left:
            left -= len(self.rfile.read(min(left, MIB)))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def triton() -> Iterator[int]:
    with ThreadingHTTPServer((HOST, 0), Triton) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def resident(pid: int) -> int:
    return numbers_of(pid)["VmRSS"] * 1024


@pytest.mark.sweep
def test_the_memory_of_large_bodies_is_given_back(triton: int) -> None:
    ports = free_ports()
    body = b'{"text_input": "' + b"x" * (15 * MIB) + b'"}'

    def post(_: int) -> int:
        with closing(http.client.HTTPConnection(HOST, ports[0], timeout=60)) as line:
            line.request("POST", "/v2/models/m/generate", body)
            return line.getresponse().status

    command = [sys.executable, "-c", FRONT, *map(str, (*ports, triton))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as front:
        assert front.stdout is not None
        assert front.stdout.readline() == b"open\n"
        before = resident(front.pid)
        with ThreadPoolExecutor(40) as pool:
            statuses = list(pool.map(post, range(40)))
        after = resident(front.pid)
        assert front.stdin is not None
        front.stdin.close()

    assert statuses.count(200) > 20
    # Heaps grow by what is smaller than a block that is mapped: a quarter of the bodies is far beyond that.
    assert after - before < 150 * MIB
