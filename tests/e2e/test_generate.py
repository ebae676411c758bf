"""What clients get from a real Triton over HTTP and gRPC."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.e2e.conftest import IN_PROCESS, Deploy, Until

PROMPT = "def read_lines(path):\n    "
# What a client has not yet taken is joined: so many tokens are more than one piece on a busy machine too.
LONG = {"max_tokens": 200, "end_id": -1}


def test_generate_answers_once_and_the_same_with_and_without_drafts(server: Deploy) -> None:
    plain = server.generate(PROMPT, max_tokens=40, num_draft_tokens=0)

    assert len(plain) > 40
    assert {server.generate(PROMPT, max_tokens=40, num_draft_tokens=k) for k in (1, 4, 8)} == {plain}
    assert server.generate(PROMPT, max_tokens=40) == plain


def test_a_stream_comes_in_pieces_that_are_the_text(server: Deploy) -> None:
    events = server.stream(PROMPT, **LONG, return_perf_metrics=True, return_num_output_tokens=True)

    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == server.generate(PROMPT, **LONG)
    *before, last = events
    assert last["num_output_tokens"] == 200
    assert 0 < last["total_accepted_draft_tokens"] <= last["total_draft_tokens"]
    rate = last["total_accepted_draft_tokens"] / last["total_draft_tokens"]
    assert last["acceptance_rate"] == pytest.approx(rate)
    assert all("acceptance_rate" not in event for event in before)


def test_counts_come_when_asked_for(server: Deploy) -> None:
    _, bare = server.post({"text_input": PROMPT, "max_tokens": 4})
    _, full = server.post(
        {"text_input": PROMPT, "max_tokens": 4, "return_num_input_tokens": True, "return_perf_metrics": True}
    )

    assert bare.keys() == {"model_name", "model_version", "text_output", "finish_reason"}
    assert full["num_input_tokens"] > 3
    assert full.keys() - bare.keys() == {
        "num_input_tokens",
        "num_cached_tokens",
        "acceptance_rate",
        "total_accepted_draft_tokens",
        "total_draft_tokens",
        "num_spec_steps",
        "acceptance_histogram",
    }


def test_a_repeated_prompt_is_answered_with_its_number_of_cached_tokens(server: Deploy) -> None:
    body = {"text_input": "# cached\n" * 40, "max_tokens": 8, "return_num_input_tokens": True}
    (_, first), (_, second) = server.post(body), server.post(body)

    given = second["num_input_tokens"]
    assert first["num_cached_tokens"] < 32
    # All but the last token, or the whole blocks among these but the last.
    assert second["num_cached_tokens"] in (given - 1, (given - 2) // 32 * 32)


def test_grpc_streams_the_same_text(server: Deploy) -> None:
    client = server.client()
    responses = list(client.generate({"text_input": PROMPT, **LONG, "stream": True}))
    client.close()

    assert len(responses) > 1
    assert "".join(each["text_output"] for each in responses) == server.generate(PROMPT, **LONG)


def test_nvidias_usual_curl_body_is_understood(server: Deploy) -> None:
    body = {
        "text_input": PROMPT,
        "max_tokens": 20,
        "bad_words": "",
        "stop_words": "",
        "pad_id": 2,
        "end_id": -1,
    }

    status, answer = server.post(body)

    assert status == 200, answer
    assert answer["text_output"] == server.generate(PROMPT, max_tokens=20, end_id=-1)


def test_the_openai_front_ends_tensors_are_understood(server: Deploy) -> None:
    client = server.client()
    values = {
        "text_input": PROMPT,
        "stream": True,
        "max_tokens": 12,
        "stop_words": ["never said"],
        "top_p": 1.0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "seed": 2**64 - 1,
        "temperature": 0.0,
        "exclude_input_in_output": True,
        "return_num_input_tokens": True,
        "return_num_output_tokens": True,
    }
    responses = list(client.generate(values))
    client.close()

    assert sum(each.get("num_output_tokens", 0) for each in responses) == 12
    assert all(isinstance(each["text_output"], str) for each in responses)


def test_the_prompt_comes_back_when_asked_for(server: Deploy) -> None:
    text = server.generate(PROMPT, max_tokens=10)

    assert server.generate(PROMPT, max_tokens=10, exclude_input_in_output=False) == PROMPT + text
    events = server.stream(PROMPT, max_tokens=10, exclude_input_in_output=False)
    assert "".join(event["text_output"] for event in events) == PROMPT + text


def test_a_stop_word_ends_the_text_before_it(server: Deploy) -> None:
    text = server.generate(PROMPT, max_tokens=60)
    word = text[20:24]

    assert server.generate(PROMPT, max_tokens=60, stop_words=[word]) == text[: text.index(word)]


def test_a_seed_fixes_a_sampled_text(server: Deploy) -> None:
    def sampled(seed: int) -> str:
        return server.generate(PROMPT, max_tokens=40, temperature=1.0, seed=seed)

    assert sampled(7) == sampled(7)
    assert len({sampled(seed) for seed in range(5)}) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"bad_words": [" string", " current line"]},
        {"embedding_bias_words": [" string", " file"], "embedding_bias_weights": [-1e6, 2.0]},
    ],
)
def test_options_change_the_text_and_drafts_do_not(server: Deploy, options: dict[str, object]) -> None:
    asked = {"text_input": PROMPT, "max_tokens": 40, "return_perf_metrics": True, **options}
    _, plain = server.post({**asked, "num_draft_tokens": 0})
    _, drafted = server.post({**asked, "num_draft_tokens": 4})

    assert plain["text_output"] != server.generate(PROMPT, max_tokens=40)
    assert drafted["text_output"] == plain["text_output"]
    assert drafted["total_accepted_draft_tokens"] > 0
    assert "speculation" not in drafted


def test_the_answer_says_which_option_turned_speculation_off(server: Deploy) -> None:
    _, answer = server.post({"text_input": PROMPT, "max_tokens": 4, "presence_penalty": 0.5})
    assert answer["speculation"] == "off: presence_penalty"


def test_many_clients_at_once_each_get_their_own_text(server: Deploy) -> None:
    prompts = [f"def function_{i}(value, other_{i}):\n    " for i in range(24)]
    alone = [server.generate(prompt, max_tokens=24) for prompt in prompts]

    with ThreadPoolExecutor(len(prompts)) as pool:
        together = list(pool.map(lambda prompt: server.stream(prompt, max_tokens=24), prompts))

    assert ["".join(event["text_output"] for event in events) for events in together] == alone


def test_metrics_count_what_the_responses_say(server: Deploy, until: Until) -> None:
    readings: list[list[float]] = []

    def counts() -> list[float]:
        readings.append([server.metric(f"spec_decode_num_{name}_tokens") for name in ("draft", "accepted")])
        return readings[-1]

    # What earlier requests did may still be on its way to the metrics, which are told every second, and
    # within 50 ms when nothing runs any more.
    before = until(lambda: [counts()] * 8 == readings[-8:] and readings[-1], "counts that stay")
    _, answer = server.post({"text_input": PROMPT, "max_tokens": 40, "return_perf_metrics": True})
    said = [answer["total_draft_tokens"], answer["total_accepted_draft_tokens"]]

    until(lambda: counts() == [old + new for old, new in zip(before, said, strict=True)], "the new counts")
    per_position = server.metric("spec_decode_num_accepted_tokens_per_pos")
    assert per_position == server.metric("spec_decode_num_accepted_tokens")
    assert server.metric("spec_decode_num_drafts", model=server.model) > 0


def test_the_printed_curl_line_works_as_it_is(server: Deploy) -> None:
    (line,) = [line for line in server.said.read_text().splitlines() if line.startswith("curl ")]

    said = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout

    events = [json.loads(event.removeprefix("data: ")) for event in said.split("\n\n") if event]
    assert "".join(event["text_output"] for event in events) == server.generate("def fib(", max_tokens=64)


@IN_PROCESS
@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/speculative_llm/ready"]
)
def test_a_healthy_server_is_healthy_by_head_too(server: Deploy, path: str) -> None:
    assert server.request("HEAD", path) == (200, "")
    assert [server.request(method, path)[0] for method in ("OPTIONS", "PUT", "DELETE", "POST")] == [405] * 4
