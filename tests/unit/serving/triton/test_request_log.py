"""What is said of requests that are over."""

from __future__ import annotations

import json
import logging
from dataclasses import replace

import pytest

from tests.unit.serving.triton.conftest import ENDLESS, SECONDS, ListeningClient, Serve, ask
from trtspec.serving.admission import ServingBounds
from trtspec.serving.stats import Stats
from trtspec.serving.triton.agreement import take_request_id
from trtspec.serving.triton.logs import JsonLines
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.responses import Code, Failure


def test_every_request_that_ends_is_counted_and_logged_with_its_outcome(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trtspec")
    heard: list[Stats] = []
    bounds = ServingBounds(max_places=1, max_queue_size=0)
    service, _ = serve(delay=0.02, tick=heard.append, bounds=bounds)
    staying = ask(service, ENDLESS, ResponseOptions(stream=True))
    assert staying.is_streaming.wait(SECONDS)
    refused = ListeningClient()
    service.submit(ENDLESS, ResponseOptions(), refused, "mine")
    assert refused.failure() is not None
    staying.left = True
    assert staying.failure() is not None
    hurried = ask(service, replace(ENDLESS, timeout_s=0.01))
    assert hurried.failure() is not None
    wrong = ask(service, replace(ENDLESS, max_tokens=0))
    assert wrong.failure() is not None
    service.refuse(ListeningClient(), Failure("wrong", Code.INVALID_ARG), "bad")
    assert ask(service, replace(ENDLESS, max_tokens=20)).text() != ""
    serve.started.remove(service)
    service.close()

    failures = heard[-1].failures
    assert failures == {
        "invalid_request": 2,
        "refused": 1,
        "timed_out": 1,
        "cancelled": 1,
        "not_finite": 0,
        "engine_failure": 0,
        "internal": 0,
    }
    lines = [JsonLines("pair").format(record) for record in caplog.records if hasattr(record, "fields")]
    said = [json.loads(line) for line in lines]
    assert all("\n" not in line and "hello" not in line for line in lines)
    assert {(line["request_id"], line["outcome"]) for line in said} == {
        ("", "cancelled"),
        ("mine", "refused"),
        ("", "timed_out"),
        ("", "invalid_request"),
        ("bad", "invalid_request"),
        ("", "length"),
    }
    (whole,) = [line for line in said if line["outcome"] == "length"]
    assert (whole["model"], whole["num_output_tokens"]) == ("pair", 20)
    assert 0 < whole["time_to_first_token_seconds"] <= whole["seconds"]
    assert 0 < whole["num_accepted_tokens"] <= whole["num_draft_tokens"]


def test_a_trace_is_in_its_line_of_json() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        record = logging.LogRecord("trtspec.x", logging.ERROR, "", 0, "a request failed", None, None)
        record.exc_info = (ValueError, error, error.__traceback__)
    line = JsonLines("pair").format(record)
    assert "\n" not in line
    assert "ValueError: two\nlines" in json.loads(line)["trace"]


@pytest.mark.parametrize("name", ["x-request-id", "X-Request-Id", "id"])
def test_the_name_of_a_request_is_no_input(name: str) -> None:
    parameters = {name: "a" * 200, "timeout": 5}
    assert take_request_id(parameters) == "a" * 128
    assert parameters == {"timeout": 5}
    assert take_request_id(parameters) == ""
