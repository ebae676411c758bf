"""A client that leaves takes its work with it."""

from __future__ import annotations

import json
import socket

import pytest

from tests.e2e.conftest import DEADLINE_S, ENDLESS, IN_PROCESS, Deploy, Until
from tests.e2e.openai_requests import GOOD, ask, error_of

pytestmark = IN_PROCESS

# Two tokens a round at most, for a client that stays.
LONG = {
    "text_input": "class Long:\n",
    "max_tokens": ENDLESS,
    "num_draft_tokens": 1,
    "end_id": -1,
    "temperature": 1.0,
    "stream": True,
}
FEW = ENDLESS // 2


def test_closing_a_grpc_stream_ends_the_request(server: Deploy, until: Until) -> None:
    rounds = server.metric("spec_decode_num_drafts")
    client = server.client()
    responses = client.generate(LONG)
    next(responses)
    until(lambda: server.metric("num_requests_running") == 1, "one request running")

    responses.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    assert 0 < server.metric("spec_decode_num_drafts") - rounds < FEW
    assert list(client.generate({"text_input": "a", "max_tokens": 2}))
    client.close()


@pytest.mark.parametrize(
    ("verb", "more"),
    [
        ("generate_stream", {"stream": True}),
        ("generate_stream", {"stream": False}),
        ("generate", {"stream": False}),
    ],
)
def test_a_client_that_hangs_up_ends_its_request_on_the_server(
    server: Deploy, until: Until, verb: str, more: dict[str, object]
) -> None:
    rounds = server.metric("spec_decode_num_drafts")
    body, stream = json.dumps({**LONG, **more}), more["stream"]
    head = f"POST /v2/models/{server.model}/{verb} HTTP/1.1\r\nHost: localhost\r\n"
    head += f"Content-Length: {len(body)}\r\n\r\n"
    line = socket.create_connection(("127.0.0.1", server.ports[0]), timeout=DEADLINE_S)
    line.sendall((head + body).encode())
    if stream:
        assert b"200" in line.recv(4096)
    until(lambda: server.metric("num_requests_running") == 1, "one request running")

    line.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    assert 0 < server.metric("spec_decode_num_drafts") - rounds < FEW


@pytest.mark.parametrize("name", ["trtspec_request", "trtspec_left"])
@pytest.mark.parametrize("verb", ["generate", "generate_stream"])
def test_a_client_may_not_send_the_inputs_that_only_the_front_sets(
    server: Deploy, name: str, verb: str
) -> None:
    """A client of one name could not be stopped, and ended the requests of others who had the same."""
    field, escaped = f'"{name}": "mine"', f'"{name[0]}\\u{ord(name[1]):04x}{name[2:]}": "mine"'
    for said in (field, escaped, f'"parameters": {{{field}}}', f'"max_tokens": 2, {field}, {field}'):
        status, answer = server.post(f'{{"text_input": "a", {said}}}'.encode(), verb)
        (event,) = answer if verb == "generate_stream" else [answer]
        assert status == 400, said
        assert event["error"].startswith(f"{name} is not an input of this model"), said
    status, _, heard = ask(server.api_port, "/v1/completions", json.dumps({**GOOD, name: "mine"}).encode())
    assert status == 400
    assert name in error_of(heard)["message"]
