"""Why a text ended, and requests that must not take longer than they say."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import ENDLESS, IN_PROCESS, Deploy

pytestmark = IN_PROCESS

PROMPT = "def fib(n):\n"


def test_every_answer_says_why_it_ended(server: Deploy) -> None:
    for values, reason in (({"max_tokens": 4}, "length"), ({"max_tokens": 200, "stop_words": ["n"]}, "stop")):
        status, answer = server.post({"text_input": PROMPT, **values})
        assert (status, answer["finish_reason"]) == (200, reason)
        events = server.stream(PROMPT, **values)
        assert [event.get("finish_reason") for event in events][-1] == reason
        assert not any("finish_reason" in event for event in events[:-1])


def test_a_time_limit_ends_a_request(server: Deploy) -> None:
    endless = {"text_input": PROMPT, "max_tokens": ENDLESS, "end_id": -1}
    status, answer = server.post({**endless, "timeout": 100_000})

    assert "the time limit of the request passed" in answer["error"]
    assert status == 503
    assert server.generate(PROMPT, max_tokens=4, timeout=60_000_000)


@pytest.mark.parametrize("timeout", ["soon", 1.5, -1])
def test_a_time_limit_that_is_none_is_refused(server: Deploy, timeout: str | float) -> None:
    status, answer = server.post({"text_input": PROMPT, "timeout": timeout})

    assert status == 400
    assert "timeout" in answer["error"]
