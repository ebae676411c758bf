"""Several completions of one prompt, from a real server."""

from __future__ import annotations

from tests.e2e.conftest import ENDLESS, IN_PROCESS, Deploy, Until

PROMPT = "def fib(n):\n    "
THREE = {
    "text_input": PROMPT,
    "max_tokens": 24,
    "temperature": 1.0,
    "seed": 11,
    "end_id": -1,
    "num_return_sequences": 3,
}


@IN_PROCESS
def test_each_is_what_its_own_seed_says(server: Deploy) -> None:
    alone = [
        server.post({**THREE, "num_return_sequences": 1, "seed": 11 + i * 2**40})[1]["text_output"]
        for i in range(3)
    ]
    assert len(set(alone)) == 3
    for stream in (False, True):
        status, events = server.post({**THREE, "stream": stream}, "generate_stream")
        assert status == 200, events
        texts = ["".join(e["text_output"] for e in events if e["sequence_index"] == i) for i in range(3)]
        assert texts == alone
        assert [event["finish_reason"] for event in events if "finish_reason" in event] == ["length"] * 3
        assert (len(events) > 3) == stream


@IN_PROCESS
def test_a_verb_for_one_answer_says_so_and_nothing_breaks(server: Deploy) -> None:
    status, answer = server.post({**THREE, "num_return_sequences": 2})
    assert status == 400
    assert "num_return_sequences above 1: the answer comes in parts" in answer["error"]
    assert server.generate(PROMPT, max_tokens=2)


@IN_PROCESS
def test_more_than_there_are_places_is_refused(server: Deploy) -> None:
    status, answer = server.post({**THREE, "num_return_sequences": 100_000})
    assert status == 400
    assert "num_return_sequences is 100000; it must be 1 to" in answer["error"]


@IN_PROCESS
def test_a_client_that_leaves_ends_all(server: Deploy, until: Until) -> None:
    client = server.client()
    responses = client.generate({**THREE, "max_tokens": ENDLESS, "stream": True})
    next(responses)
    until(lambda: server.metric("num_requests_running") == 3, "three completions at work")

    responses.close()

    until(lambda: server.metric("num_requests_running") == 0, "no request running")
    client.close()
