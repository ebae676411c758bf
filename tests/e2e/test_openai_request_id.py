"""What OpenAI's API sends to Triton, as a server of Python's own hears it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.openai_requests import GOOD, ROUTES, ask, serving
from trtspec.serving.triton.agreement import NAMING

LAST = {"text_output": "b", "finish_reason": "stop", "num_input_tokens": 1, "num_output_tokens": 1}


@pytest.fixture
def heard() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a server that answers everything, and the bodies that it gets, with their headers."""
    bodies: list[dict[str, Any]] = []

    class Triton(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            trace = {name: self.headers.get_all(name) for name in ("traceparent", "tracestate")}
            bodies.append({**body, **trace, "headers": self.headers})
            data = b"data: " + json.dumps(LAST).encode() + b"\n\n"
            self.send_response(200)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Triton)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", bodies
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_clients_request_id_goes_on_to_triton(
    heard: tuple[str, list[dict[str, Any]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(NAMING, "a deployment's own: ")
    url, bodies = heard
    names = []
    with serving(url, said=tmp_path / "said") as port:
        for headers in ({}, {"X_Request_Id": "mine"}):
            for stream in (False, True):
                body = json.dumps({**GOOD, "stream": stream}).encode()
                status, sent, said = ask(port, ROUTES[0], body, **headers)
                assert status == 200, said
                answer = json.loads(said.removeprefix(b"data: ").partition(b"\n\n")[0])
                assert answer["id"] == f"cmpl-{sent['x-request-id']}"
                names.append(sent["x-request-id"])
        # A request that does not get to the model has its name too.
        status, sent, _ = ask(port, ROUTES[0], b"{", X_Request_Id="n" * 200)
        assert (status, sent["x-request-id"]) == (400, "n" * 128)

    assert [body["id"] for body in bodies] == names
    assert names[2:] == ["mine", "mine"]
    assert len(set(names)) == 3
    first, second = bodies[:2]
    assert first["trtspec_request"] != second["trtspec_request"]
    assert first["trtspec_request"].startswith("a deployment's own: ")
    assert first["text_input"] == "a"


def test_a_clients_trace_goes_on_to_triton(heard: tuple[str, list[dict[str, Any]]], tmp_path: Path) -> None:
    """As it came, for each of several prompts; other headers stay behind."""
    url, bodies = heard
    trace = {"traceparent": f"00-{'0af7' * 8}-b7ad6b7169203331-01", "tracestate": "a=1,b=2"}
    several = json.dumps({**GOOD, "prompt": ["a", "b"]}).encode()
    with serving(url, said=tmp_path / "said") as port:
        assert ask(port, ROUTES[0], several, Authorization="Bearer x", **trace)[0] == 200
        assert ask(port, ROUTES[0], json.dumps(GOOD).encode())[0] == 200

    *traced, other = bodies
    assert [(body["traceparent"], body["tracestate"]) for body in traced] == [
        ([trace["traceparent"]], [trace["tracestate"]])
    ] * 2
    assert all("authorization" not in body["headers"] for body in traced)
    assert (other["traceparent"], other["tracestate"]) == (None, None)
