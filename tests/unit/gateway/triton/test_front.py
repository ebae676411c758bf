"""The front with clients that are in no hurry, or gone; Triton is not asked."""

from __future__ import annotations

import asyncio
import gzip
import http.client
import logging
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

import pytest
from aiohttp import ClientConnectionResetError, web

from tests.support.ports import free_ports
from tests.unit.deployment.test_figures import exported
from trtspec.gateway.origins import Origins
from trtspec.gateway.ports import Ports
from trtspec.gateway.triton.front import Front, FrontConnection
from trtspec.serving.stats import Stats

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Opened:
    front: Front
    ports: Ports


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    monkeypatch.setattr("trtspec.gateway.triton.front._ENDING_S", 0.05)
    ports = Ports(*free_ports())
    front = Front(Origins(HOST), ports, "m", "secret")
    front.start()
    front.open(Ports(http=1, metrics=1))
    yield Opened(front, ports)
    front.close()


@pytest.fixture
def port(opened: Opened) -> int:
    return opened.ports.http


def test_a_client_that_leaves_within_its_body_is_no_error_of_ours(
    port: int, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(10):
        line = socket.create_connection((HOST, port))
        line.sendall(
            b"POST /v2/models/m/generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        )
        # A reset instead of an end.
        line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        line.close()

    with socket.create_connection((HOST, port)) as line:
        line.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert line.recv(100).startswith(b"HTTP/1.1 403 ")
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("said", [b"", b"GET /v2/health/live HTTP/1.1\r\nHost: "])
def test_who_asks_nothing_is_not_waited_for(port: int, said: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.gateway.triton.front.HEAD_S", 0.2)
    with socket.create_connection((HOST, port), timeout=120) as line:
        line.sendall(said)
        with suppress(ConnectionResetError):
            assert line.recv(100) == b""


def test_who_has_asked_may_stay(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    clocks: list[asyncio.TimerHandle | None] = []
    asked = FrontConnection.head_received

    def seen(line: FrontConnection) -> None:
        asked(line)
        clocks.append(line._clock)

    monkeypatch.setattr(FrontConnection, "head_received", seen)
    with socket.create_connection((HOST, port), timeout=120) as line:
        for _ in range(2):
            line.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert line.recv(1000).startswith(b"HTTP/1.1 403 ")
    assert clocks[0]
    assert clocks[0].cancelled()
    assert clocks == [clocks[0]] * 2, "its time has begun again"


def test_who_does_not_read_its_answer_is_not_waited_for(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.gateway.triton.front.READING_S", 0.3)
    has_left = threading.Event()

    class Triton(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            try:
                while True:
                    self.wfile.write(b"data: " + bytes(1 << 16) + b"\n\n")
            except ConnectionError:
                has_left.set()

        def log_message(self, *_: object) -> None: ...

    with HTTPServer((HOST, 0), Triton) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        opened.front.open(Ports(http=triton.server_port, metrics=1))
        with socket.create_connection((HOST, opened.ports.http), timeout=120) as line:
            head = b"POST /v2/models/m/generate_stream HTTP/1.1\r\nHost: localhost\r\n"
            line.sendall(head + b"Content-Length: 2\r\n\r\n{}")
            assert has_left.wait(120)
        triton.shutdown()


def test_metrics_are_there_while_triton_is_and_count_what_was_refused_in_between(opened: Opened) -> None:
    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; charset=utf-8")
            self.end_headers()
            self.wfile.write(b"nv_gpu_utilization 0.5\n")

        def log_message(self, *_: object) -> None: ...

    front, ports = opened.front, opened.ports
    assert _ask(ports.metrics, "GET", "/metrics")[0] == 503
    front.shut("restarting", is_alive=False)
    for method, path in (("POST", "/v2/models/m/generate"), ("GET", "/v2/health/ready")):
        assert _ask(ports.http, method, path)[0] == 503
    assert _ask(ports.metrics, "GET", "/metrics")[0] == 503
    with HTTPServer((HOST, 0), Triton) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        front.open(Ports(http=1, metrics=triton.server_port))
        status, text = _ask(ports.metrics, "GET", "/metrics")
        assert status == 200
        assert text.startswith("nv_gpu_utilization 0.5\n# HELP trtspec:front_refusals ")
        assert 'trtspec:front_refusals{api="triton",model="m",reason="not_ready"} 1\n' in text
        assert 'reason="draining"} 0\n' in text
        assert _ask(ports.metrics, "GET", "/v2/models/m")[0] == 404
        # What drains is still looked at.
        front.shut("stopping")
        assert _ask(ports.http, "POST", "/v2/models/m/generate")[0] == 503
        assert 'reason="draining"} 1\n' in _ask(ports.metrics, "GET", "/metrics")[1]
        triton.shutdown()


def test_the_word_of_life_is_tritons_own_once_it_is_up(opened: Opened) -> None:
    """A Triton that is gone, or hangs, must not look alive behind a front that is."""
    front, port = opened.front, opened.ports.http
    assert _ask(port, "GET", "/v2/health/live")[0] == 503
    with socket.create_server((HOST, 0)) as hangs:
        front.open(Ports(http=hangs.getsockname()[1], metrics=1))
        with socket.create_connection((HOST, port), timeout=0.5) as line:
            line.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with pytest.raises(TimeoutError):
                line.recv(100)
    for state in ("starting", "stopping"):
        front.shut(state)
        assert _ask(port, "GET", "/v2/health/live")[0] == 200
    front.shut("restarting", is_alive=False)
    assert _ask(port, "GET", "/v2/health/live")[0] == 503


def test_who_is_refused_by_a_server_that_stops_connects_again(opened: Opened) -> None:
    opened.front.shut("stopping")
    with closing(http.client.HTTPConnection(HOST, opened.ports.http, timeout=120)) as connection:
        connection.request("POST", "/v2/models/m/generate", b"{}")
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert answer.headers["Connection"] == "close"


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("//{other}/latest/meta-data/", "//{other}/latest/meta-data/"),
        ("http://{other}/v2?a=b", "/v2?a=b"),
        ("/v2/models/../repository/index", "/v2/models/../repository/index"),
        ("/v2/models/a%2Fb/%2e%2e?c=%25", "/v2/models/a%2Fb/%2e%2e?c=%25"),
        ("//[", "//["),
        ("http://{other}", None),
        ("{other}", None),
        ("*", None),
    ],
)
def test_whatever_a_request_names_triton_alone_is_asked_as_it_came(
    opened: Opened, target: str, path: str | None
) -> None:
    with socket.create_server((HOST, 0)) as triton, socket.create_server((HOST, 0)) as elsewhere:
        other = f"{HOST}:{elsewhere.getsockname()[1]}"
        triton.settimeout(120)
        opened.front.open(Ports(http=triton.getsockname()[1], metrics=1))
        with socket.create_connection((HOST, opened.ports.http), timeout=120) as line:
            head = (
                f"GET {target.format(other=other)} HTTP/1.1\r\nHost: {other}\r\nAccept-Encoding: gzip\r\n\r\n"
            )
            line.sendall(head.encode())
            if path is None:
                assert b" 400 " in line.recv(100).split(b"\r\n")[0]
            else:
                asked = triton.accept()[0]
                heard = asked.recv(1000).decode()
                assert heard.split("\r\n")[0] == f"GET {path.format(other=other)} HTTP/1.1"
                # What came back would be passed on without the header that says so.
                assert "accept-encoding" not in heard.lower()
                asked.sendall(b"HTTP/1.1 204 No Content\r\n\r\n")
                assert line.recv(100).startswith(b"HTTP/1.1 204 ")
                asked.close()
        for listener in (triton, elsewhere):
            listener.setblocking(False)
            with pytest.raises(BlockingIOError):
                listener.accept()


def test_a_histogram_in_the_middle_of_its_change_is_read_again(opened: Opened) -> None:
    stats = Stats()
    before = exported(stats, 1)
    for _ in range(8):
        stats.inter_token_latency.observe(0.003)
    after, looks, until = exported(stats, 2), list[int](), list[int]()

    class Triton(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """What the first two find is new up to some line, in the order in which values are told."""
            half = [old if number > until[-1] else new for number, (new, old) in enumerate(lines)]
            self.send_response(200)
            self.end_headers()
            self.wfile.write("\n".join(half if len(looks) < 2 else after.split("\n")).encode())
            looks.append(1)

        def log_message(self, *_: object) -> None: ...

    lines = list(zip(after.split("\n"), before.split("\n"), strict=True))
    changed = [i for i, (new, old) in enumerate(lines) if "latency_seconds" in new and new != old]
    assert len(changed) > 20
    with HTTPServer((HOST, 0), Triton) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        opened.front.open(Ports(http=1, metrics=triton.server_port))
        for number in (changed[0], changed[5], changed[-2]):
            until.append(number)
            looks.clear()
            assert after in _ask(opened.ports.metrics, "GET", "/metrics")[1]
            assert len(looks) == 3
        triton.shutdown()


def test_a_client_that_goes_within_its_answer_is_not_refused(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Triton(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b'data: {"text_output": "a"}\n\n')

        do_GET = do_POST

        def log_message(self, *_: object) -> None: ...

    async def write(*_: object) -> None:
        raise ClientConnectionResetError("Cannot write to closing transport")

    front, ports = opened.front, opened.ports
    with HTTPServer((HOST, 0), Triton) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        front.open(Ports(http=triton.server_port, metrics=triton.server_port))
        with monkeypatch.context() as gone, suppress(http.client.HTTPException):
            gone.setattr(web.StreamResponse, "write", write)
            _ask(ports.http, "POST", "/v2/models/m/generate_stream")
        # A server that is gone is another matter.
        front.open(Ports(http=1, metrics=triton.server_port))
        assert _ask(ports.http, "POST", "/v2/models/m/generate_stream")[0] == 503
        text = _ask(ports.metrics, "GET", "/metrics")[1]
        assert 'reason="not_ready"} 1\n' in text
        triton.shutdown()


@pytest.mark.parametrize("where", ["http", "metrics"])
@pytest.mark.parametrize(
    ("head", "status"),
    [
        ("Host: evil.example", 403),
        ("Host: 127.0.0.1.evil.example:8000", 403),
        ("Host: localhost\r\nOrigin: http://evil.example", 403),
        ("Host: localhost\r\nOrigin: null", 403),
        ("Host: localhost\r\nOrigin: http://localhost:3000", None),
        ("Host: 127.0.0.1:1", None),
        ("Host: [::1]", None),
    ],
)
def test_a_web_page_may_not_use_a_server_of_this_machine(
    opened: Opened, where: str, head: str, status: int | None
) -> None:
    opened.front.shut("starting", is_alive=False)
    path = "/v2/models/m/generate" if where == "http" else "/metrics"
    method = "POST" if where == "http" else "GET"
    with socket.create_connection((HOST, getattr(opened.ports, where)), timeout=120) as line:
        line.sendall(f"{method} {path} HTTP/1.1\r\n{head}\r\nContent-Length: 2\r\n\r\n{{}}".encode())
        assert int(line.recv(1000).split()[1]) == (status or 503)
    number = int(status is not None and where == "http")
    assert f'reason="unauthorized"}} {number}\n' in opened.front._refusals.text()


class Asked(BaseHTTPRequestHandler):
    """Triton, which notes what types of bodies it gets."""

    types: ClassVar[list[str]] = []

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.types.append(self.headers["Content-Type"])
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"])
@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", 415), ("0.0.0.0", 200)])
def test_a_form_is_no_json_where_a_web_page_may_send_it(kind: str, host: str, status: int) -> None:
    """On another address, which no page takes for its own machine's, curl's usual line works as ever."""
    ports = Ports(*free_ports())
    front = Front(Origins(host), ports, "m", "secret")
    front.start()
    Asked.types.clear()
    try:
        with HTTPServer((HOST, 0), Asked) as triton:
            threading.Thread(target=triton.serve_forever, daemon=True).start()
            front.open(Ports(http=triton.server_port, metrics=1))
            with closing(http.client.HTTPConnection(HOST, ports.http, timeout=120)) as connection:
                headers = {"Content-Type": kind, "Host": "localhost" if status == 415 else "some.name"}
                connection.request("POST", "/v2/models/m/generate", b'{"text_input": "a"}', headers)
                assert connection.getresponse().status == status
            triton.shutdown()
    finally:
        front.close()
    known = "application/json" if kind == "application/x-www-form-urlencoded" else kind
    assert Asked.types == ([] if status == 415 else [known])


BOMB = gzip.compress(bytes(300 << 20), 9)


@pytest.mark.parametrize(
    ("where", "method", "path", "state", "head", "status"),
    [
        ("http", "POST", "/v2/repository/index", None, "Content-Length: 1000000", 403),
        ("http", "POST", "/v2/health/live", None, "Content-Length: 1000000", 405),
        ("http", "POST", "/v2/models/m/generate", "starting", "Transfer-Encoding: chunked", 503),
        ("http", "POST", "/v2/models/m/generate", None, "Content-Length: 100000000", 413),
        (
            "http",
            "POST",
            "/v2/models/m/generate",
            None,
            "Content-Encoding: br\r\nContent-Length: 1000000",
            415,
        ),
        ("metrics", "POST", "/metrics", None, "Transfer-Encoding: chunked", 405),
        ("metrics", "GET", "/other", None, "Content-Length: 1000000", 404),
    ],
)
def test_the_triton_front_refuses_a_request_without_waiting_for_its_body(
    opened: Opened, where: str, method: str, path: str, state: str | None, head: str, status: int
) -> None:
    if state:
        opened.front.shut(state)
    with socket.create_connection((HOST, getattr(opened.ports, where)), timeout=120) as line:
        line.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
        said = line.makefile("rb").read()
    assert said.startswith(b"HTTP/1.1 %d " % status)
    assert b"\r\nConnection: close\r\n" in said


def test_a_request_whose_whole_body_is_there_may_be_followed_by_another(opened: Opened) -> None:
    with socket.create_connection((HOST, opened.ports.http), timeout=120) as line:
        for _ in range(2):
            line.sendall(b"POST /v2/logging HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}")
            assert line.recv(1000).startswith(b"HTTP/1.1 403 ")


@pytest.mark.parametrize(
    ("where", "path", "state", "statuses"),
    [
        ("http", "/v2/models/m/generate", None, {413}),
        ("http", "/v2/models/m/generate", "starting", {503}),
        ("http", "/v2/repository/index", None, {403}),
        ("metrics", "/metrics", None, {405}),
    ],
)
def test_small_bodies_that_become_large_hold_nobody_up(
    opened: Opened, where: str, path: str, state: str | None, statuses: set[int]
) -> None:
    """The loop works no longer at a time than one of them, inflated at once, would take it."""
    if state:
        opened.front.shut(state)

    async def longest() -> float:
        """The most time that the loop's thread has worked between two turns of the loop."""
        worst, before = 0.0, time.thread_time()
        while not is_over.is_set():
            await asyncio.sleep(0.005)
            now = time.thread_time()
            worst, before = max(worst, now - before), now
        return worst

    def send(_: int) -> int:
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\n"
        with socket.create_connection((HOST, getattr(opened.ports, where)), timeout=60) as line:
            with suppress(ConnectionError):
                line.sendall(f"{head}Content-Length: {len(BOMB)}\r\n\r\n".encode() + BOMB)
            return int(line.recv(100).split()[1])

    is_over = threading.Event()
    gap = asyncio.run_coroutine_threadsafe(longest(), opened.front._loop)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(send, range(4)))
    is_over.set()
    assert found == statuses
    begin = time.thread_time()
    zlib.decompress(BOMB, 31)
    assert gap.result() < (time.thread_time() - begin) / 2


class Model(BaseHTTPRequestHandler):
    """Triton with one model; as Triton's own server, it has no HEAD."""

    def do_GET(self) -> None:
        body = b'{"name": "m"}' if self.path.startswith("/v2") and "/health/" not in self.path else b""
        self.send_response(404 if "/absent" in self.path else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.mark.parametrize(
    ("path", "status"),
    [
        *(
            (f"/v2{path}", 200)
            for path in ("", "/health/live", "/health/ready", "/models/m", "/models/m/config")
        ),
        *((f"/v2/models/m{path}", 200) for path in ("/ready", "/stats", "/versions/1", "/versions/1/ready")),
        ("/v2/models/absent", 404),
        ("/v2/models/absent/ready", 503),
        ("/v2/models/m/generate", 405),
        ("/v2/logging", 403),
    ],
)
def test_head_is_answered_as_get_is_without_its_body(opened: Opened, path: str, status: int) -> None:
    with HTTPServer((HOST, 0), Model) as triton:
        threading.Thread(target=triton.serve_forever, daemon=True).start()
        opened.front.open(Ports(http=triton.server_port, metrics=1))
        with closing(http.client.HTTPConnection(HOST, opened.ports.http, timeout=120)) as connection:
            lengths = []
            # On one connection: a body that should not be there would be taken for the next answer.
            for method in ("GET", "HEAD", "HEAD", "GET"):
                connection.request(method, path)
                answer = connection.getresponse()
                assert answer.status == status
                lengths.append(answer.headers["Content-Length"])
                body = answer.read()
                assert len(body) == (int(lengths[-1]) if method == "GET" else 0)
        assert lengths == lengths[:1] * 4
        triton.shutdown()


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "PATCH", "POST", "TRACE", "GET", "HEAD"])
def test_a_method_that_a_path_does_not_have_is_405_whatever_the_state(opened: Opened, method: str) -> None:
    """The load balancer that checks a server by one is told which to use, not that the server is down."""
    ports = opened.ports
    read = [f"/v2{path}" for path in ("/health/live", "/health/ready", "", "/models/m", "/models/m/ready")]
    asked = [f"/v2/models/m{path}" for path in ("/generate", "/generate_stream", "/versions/1/infer")]
    cases = {(ports.http, path): "GET, HEAD" for path in read}
    cases |= {(ports.http, path): "POST" for path in asked} | {(ports.metrics, "/metrics"): "GET, HEAD"}
    for state in (None, "starting"):
        if state:
            opened.front.shut(state)
        for (port, path), allowed in cases.items():
            with closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
                connection.request(method, path)
                answer = connection.getresponse()
            if method not in allowed:
                assert (answer.status, answer.headers["Allow"]) == (405, allowed), path
            else:
                assert answer.status != 405


def _ask(port: int, method: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(HOST, port, timeout=120)) as connection:
        connection.request(method, path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_a_connection_too_many_is_told_so_and_counted(
    opened: Opened, caplog: pytest.LogCaptureFixture
) -> None:
    opened.front._most = 1
    with socket.create_connection((HOST, opened.ports.http), timeout=120) as first:
        first.sendall(b"GET /v2/logging HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert first.recv(100).startswith(b"HTTP/1.1 403 ")
        for port in (opened.ports.http, opened.ports.metrics):
            with socket.create_connection((HOST, port), timeout=120) as late:
                said = late.makefile("rb").read()
            assert said.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"\r\nRetry-After: 1\r\n" in said
            assert said.endswith(b'{"error": "too many connections"}')
    assert 'reason="too_many_connections"} 2\n' in opened.front._refusals.text()
    assert caplog.records == []
