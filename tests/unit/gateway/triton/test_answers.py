"""What becomes of Triton's answers on their way through the front."""

from __future__ import annotations

import json

import pytest

from tests.fakes.stub_messages import ENDED_MODELS
from trtspec.gateway.triton.front import corrected, without_status

UNREAD = [
    "failed to parse the request JSON buffer: The document is empty. at 0",
    "attempt to get members for non-object",
    "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
    "Converting keyword: 'parameters': Unable to parse 'data': attempt to access JSON non-string as string",
    "parameter key '' was not found in the JSON",
]
"""What Triton 2.51 answers with status 500 to bodies that are not what it reads."""


@pytest.mark.parametrize(("status", "retry"), [(400, None), (499, None), (500, None), (503, "1")])
@pytest.mark.parametrize("form", ["%s", "data: %s\n\n"])
def test_an_error_of_the_model_has_the_status_that_it_says(status: int, retry: str | None, form: str) -> None:
    said = f'{{"error":"{status} out of \\"luck\\""}}'
    answer = corrected(400, [], (form % said).encode())

    assert isinstance(answer.body, bytes)
    assert (answer.status, json.loads(answer.body)) == (status, {"error": 'out of "luck"'})
    assert answer.headers.get("Retry-After") == retry
    assert answer.content_type == "application/json"


def test_an_error_of_tritons_keeps_its_own() -> None:
    body = b'{"error":"200 is no such model"}'.replace(b"200 ", b"")
    answer = corrected(404, [("Content-Type", "application/json")], body)
    assert (answer.status, answer.body) == (404, body)


@pytest.mark.parametrize("message", ENDED_MODELS)
@pytest.mark.parametrize("form", ["%s", "data: %s\n\n"])
def test_the_triton_gateway_answers_503_when_the_model_has_ended(message: str, form: str) -> None:
    answer = corrected(400, [], (form % json.dumps({"error": message})).encode())

    assert isinstance(answer.body, bytes)
    assert (answer.status, json.loads(answer.body)) == (503, {"error": "the model's process has ended"})
    assert answer.headers["Retry-After"] == "1"


@pytest.mark.parametrize("message", UNREAD)
def test_a_body_that_triton_cannot_read_is_the_clients_fault(message: str) -> None:
    answer = corrected(500, [], json.dumps({"error": message}).encode())
    assert answer.status == 400


def test_another_error_of_tritons_stays_the_servers() -> None:
    assert corrected(500, [], b'{"error":"failed to allocate memory"}').status == 500


def test_an_answer_is_no_error() -> None:
    body = b'{"text_output":"\\"error\\":\\"503 it says"}'
    answer = corrected(200, [], body)
    assert (answer.status, answer.body) == (200, body)


def test_a_stream_that_has_begun_ends_with_the_error_alone() -> None:
    text = b'data: {"text_output":"a"}\n\ndata: {"error":"503 the server is stopping"}\n\n'
    assert without_status(text) == (
        b'data: {"text_output":"a"}\n\ndata: {"error":"the server is stopping"}\n\n'
    )
    quoted = b'data: {"text_output":"{\\"error\\":\\"503 it says\\"}"}\n\n'
    assert without_status(quoted) == quoted
