"""OpenAI's API under bad clients: malformed bodies, odd requests, departures."""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from collections.abc import Callable
from contextlib import ExitStack, closing
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.e2e.conftest import DEADLINE_S, IN_PROCESS, Deploy, Until
from tests.e2e.openai_requests import CHAT, GOOD, LONG, MODEL, ROUTES, ask, begin, error_of
from tests.e2e.test_cancel import FEW

# What JSON can hold, and the fields of the API with it.
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(["a", MODEL, "user", "json_schema", "required", "function", "\ud800"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
FIELDS = (
    *("model", "prompt", "messages", "max_tokens", "temperature", "top_p", "n", "stop", "seed", "stream"),
    *(
        "stream_options",
        "logprobs",
        "top_logprobs",
        "response_format",
        "tools",
        "tool_choice",
        "echo",
        "user",
    ),
    *(
        "max_completion_tokens",
        "logit_bias",
        "presence_penalty",
        "frequency_penalty",
        "best_of",
        "min_tokens",
    ),
    *("chat_template_kwargs", "top_k", "min_p", "bad_words", "repetition_penalty", "metadata", "nonsense"),
    *("functions", "function_call", "reasoning_effort", "verbosity", "prediction", "prompt_cache_options"),
)


@IN_PROCESS
@settings(max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    route=st.sampled_from(ROUTES),
    changes=st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=3),
    cut=st.none() | st.integers(0, 60),
    garbage=st.binary(max_size=8),
)
def test_whatever_the_body_the_answer_is_an_answer_or_openais_error(
    server: Deploy, route: str, changes: dict[str, Any], cut: int | None, garbage: bytes
) -> None:
    body = json.dumps({**(GOOD if "chat" not in route else CHAT), **changes}).encode()
    if cut is not None:
        body = body[:cut] + garbage
    status, _, said = ask(server.api_port, route, body)

    assert status in (200, 400, 404), said
    if status != 200:
        error = error_of(said)
        assert error["type"] == "invalid_request_error"


@IN_PROCESS
@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 50_000, "nested too deeply"),
        (b'{"model":"speculative_llm","prompt":' + b"[" * 300 + b"]" * 300 + b"}", "nested too deeply"),
        (b'{"model":"speculative_llm","prompt":"\\ud800"}', "Unicode"),
        (b'{"model":"speculative_llm","prompt":"a","seed":' + b"9" * 5000 + b"}", "digits"),
        (b'{"model":"speculative_llm","prompt":"a","top_p":NaN}', "NaN"),
        (b"", "not JSON"),
        (b"[]", "object"),
    ],
)
def test_malformed_json_is_told_so(server: Deploy, body: bytes, says: str) -> None:
    status, _, said = ask(server.api_port, ROUTES[0], body)

    assert status == 400
    assert says in error_of(said)["message"]


@IN_PROCESS
@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/v1/completions", {}, 405),
        ("POST", "/v1/embeddings", {}, 404),
        ("GET", "/redoc", {}, 404),
        (
            "OPTIONS",
            "/v1/chat/completions",
            {"Origin": "http://localhost:3000", "Access_Control_Request_Method": "POST"},
            405,
        ),
        ("OPTIONS", "/v1/chat/completions", {"Origin": "http://evil"}, 403),
        ("POST", "/v1/completions", {"Content_Type": "text/plain"}, 415),
        ("POST", "/v1/completions", {"Content_Length": str(1 << 40)}, 413),
    ],
)
def test_other_requests_get_openais_error_too(
    server: Deploy, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    found, sent, said = ask(server.api_port, path, b"{}", method, **headers)

    assert found == status
    error_of(said)
    assert not any(name.startswith("access-control") for name in sent)


@IN_PROCESS
@pytest.mark.parametrize("change", [bytes, gzip.compress])
def test_a_body_that_is_said_to_be_compressed_is_refused(
    server: Deploy, change: Callable[[bytes], bytes]
) -> None:
    body = change(json.dumps(GOOD).encode())
    status, _, said = ask(server.api_port, "/v1/completions", body, Content_Encoding="gzip")
    assert status == 400
    assert "Content-Encoding" in error_of(said)["message"]


@IN_PROCESS
def test_a_body_without_a_length_is_bounded(server: Deploy) -> None:
    with socket.create_connection(("127.0.0.1", server.api_port), timeout=DEADLINE_S) as line:
        line.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        piece = b"%x\r\n" % (1 << 20) + b" " * (1 << 20) + b"\r\n"
        # The server answers and hangs up long before that.
        with pytest.raises(OSError, match=r"reset|pipe"):
            line.sendall(64 * piece)
    assert ask(server.api_port, "/v1/models", None, "GET")[0] == 200


@IN_PROCESS
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("n", [1, 2])
def test_a_client_that_hangs_up_ends_its_request(server: Deploy, until: Until, stream: bool, n: int) -> None:
    rounds = server.metric("spec_decode_num_drafts")
    line = begin(server.api_port, {**LONG, "stream": stream, "n": n})
    if stream:
        assert b"200" in line.recv(4096)
    until(lambda: server.metric("num_requests_running") == n, "requests running")

    line.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    assert 0 < server.metric("spec_decode_num_drafts") - rounds < n * FEW


@IN_PROCESS
def test_a_client_that_waits_in_the_queue_can_leave(server: Deploy, until: Until) -> None:
    with ExitStack() as stack:
        for _ in range(17):
            stack.enter_context(begin(server.api_port, {**LONG, "stream": True}))
        until(lambda: server.metric("num_requests_waiting") == 1, "one waiting")
        last = begin(server.api_port, LONG)
        until(lambda: server.metric("num_requests_waiting") == 2, "two waiting")

        last.close()

        until(lambda: server.metric("num_requests_waiting") == 1, "one waiting")
    until(lambda: server.metric("num_requests_running") == 0, "no request running")


@IN_PROCESS
@pytest.mark.parametrize("path", ["/health", "/ping", "/v1/models", "/version", "/metrics"])
def test_openais_api_answers_head_as_get(server: Deploy, path: str) -> None:
    for method, status in (("HEAD", 200), ("OPTIONS", 405), ("PUT", 405)):
        with closing(http.client.HTTPConnection("127.0.0.1", server.api_port, timeout=DEADLINE_S)) as line:
            line.request(method, path)
            answer = line.getresponse()
            assert answer.status == status
            assert "GET" in (answer.headers["Allow"] or "GET")
            assert int(answer.headers["Content-Length"]) >= 0
            assert bool(answer.read()) == (method != "HEAD")


@IN_PROCESS
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/models", "/health", "/metrics"])
def test_a_web_page_may_not_use_the_api_of_this_machine(server: Deploy, path: str) -> None:
    method, body = ("POST", json.dumps(GOOD).encode()) if path == "/v1/completions" else ("GET", None)
    for foreign in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
        status, _, said = ask(server.api_port, path, body, method, **foreign)
        assert status == 403
        assert "--allowed-host" in error_of(said)["message"]
    for local in ({"Host": "[::1]:9000"}, {"Origin": "http://localhost:3000"}):
        assert ask(server.api_port, path, body, method, **local)[0] == 200
