"""What becomes of Triton's answers on their way through the front."""

from __future__ import annotations

import json

import pytest

from trtspec.deploy.answers import corrected, without_status


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
