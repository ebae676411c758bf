"""An address is asked what it speaks; a wrong port is named, with the server's other ports."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from tests.fakes.triton_grpc import TritonModel, served
from tests.support.ports import free_ports
from trtspec.base.errors import UnavailableError
from trtspec.client.client import Client
from trtspec.client.endpoint import ChatMessage
from trtspec.client.finding import check_triton, find, metrics_at, metrics_beside

MODEL = {"inputs": [{"name": "text_input"}], "outputs": [{"name": "finish_reason"}]}
TRITON = {"/v2": {"name": "triton"}, "/v2/models/speculative_llm": MODEL}
API = {"/v1/models": {"data": [{"id": "code", "owned_by": "trtspec"}]}}


def http(port: int, answers: Mapping[str, Any]) -> ThreadingHTTPServer:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found = answers.get(self.path)
            body = found.encode() if isinstance(found, str) else json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


@pytest.fixture(scope="module")
def first() -> Iterator[int]:
    """The first of the four ports of a server, one after the other."""
    while True:
        (port, *_) = free_ports()
        try:
            servers = [http(port, TRITON), http(port + 2, {"/metrics": "nv_a 1\n"}), http(port + 3, API)]
            with served(TritonModel({"finish_reason": [b"stop"]}), port + 1):
                yield port
        except (OSError, RuntimeError):
            continue
        for each in servers:
            each.shutdown()
        return


def asked(url: str) -> tuple[str, str]:
    """What is found at an address: the API, and the address by which it is asked."""

    async def ask() -> tuple[str, str]:
        found = await find(url, None, chat=False, timeout_s=10)
        await found.endpoint.close()
        return found.endpoint.api, found.endpoint.url

    return asyncio.run(ask())


@pytest.mark.parametrize("scheme", ["", "http://"])
def test_the_protocol_of_an_address_is_found_by_asking(first: int, scheme: str) -> None:
    host = f"{scheme}127.0.0.1"
    assert asked(f"{host}:{first}") == ("triton", f"http://127.0.0.1:{first}")
    assert asked(f"{host}:{first + 3}") == ("openai", f"http://127.0.0.1:{first + 3}/v1")
    assert asked(f"{host}:{first + 3}/v1") == ("openai", f"http://127.0.0.1:{first + 3}/v1")
    assert Client(f"{host}:{first + 1}").generate("a").finish_reason == "stop"


@pytest.mark.parametrize(
    ("port", "path"),
    [
        (0, "v2/models/speculative_llm"),
        (0, "v2/models/speculative_llm/generate_stream"),
        (0, "v2/"),
        (3, "v1/chat/completions"),
    ],
)
def test_a_url_that_deploy_prints_is_an_address(first: int, port: int, path: str) -> None:
    found = asked(f"http://127.0.0.1:{first + port}")
    assert asked(f"http://127.0.0.1:{first + port}/{path}") == found


@pytest.mark.parametrize(
    ("port", "is_named"), [(1, "that is Triton's gRPC port"), (2, "that is Triton's metrics port")]
)
def test_a_wrong_port_says_which_it_is_and_names_the_others(first: int, port: int, is_named: str) -> None:
    with pytest.raises(UnavailableError) as caught:
        asked(f"127.0.0.1:{first + port}")
    assert is_named in caught.value.problem
    assert f"Triton's HTTP is {first}" in caught.value.problem
    assert f"OpenAI's API is {first + 3}" in caught.value.problem
    assert caught.value.repair == f"--url http://127.0.0.1:{first}"


@pytest.mark.parametrize("port", [0, 1])
def test_a_chat_with_tritons_own_ports_names_openais(first: int, port: int) -> None:
    with pytest.raises(UnavailableError) as caught:
        Client(f"127.0.0.1:{first + port}").generate([ChatMessage("user", "Hello")])
    assert caught.value.repair == f"--url http://127.0.0.1:{first + 3}/v1"


def test_metrics_are_found_beside_any_port(first: int) -> None:
    for port in range(4):
        assert metrics_at(f"127.0.0.1:{first + port}") in (
            f"http://127.0.0.1:{first + 2}/metrics",
            f"127.0.0.1:{first + 2}",
        )


@pytest.mark.parametrize("port", [0, 3])
def test_a_bench_finds_the_metrics_of_what_it_asks(first: int, port: int) -> None:
    async def ask() -> str | None:
        found = await find(f"127.0.0.1:{first + port}", None, chat=False, timeout_s=10)
        await found.endpoint.close()
        return await metrics_beside(found.endpoint)

    assert asyncio.run(ask()) == f"http://127.0.0.1:{first + {0: 2, 3: 3}[port]}/metrics"


def test_serve_says_which_port_it_was_given(first: int) -> None:
    check_triton(f"127.0.0.1:{first}")
    with pytest.raises(UnavailableError, match="that is OpenAI's API port"):
        check_triton(f"127.0.0.1:{first + 3}")
