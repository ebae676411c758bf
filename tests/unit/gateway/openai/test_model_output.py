"""What the model says, as pieces of an answer and as errors."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fakes.stub_messages import ENDED_MODELS
from trtspec.gateway.openai.errors import ApiError
from trtspec.gateway.openai.model_output import TokenCounts, failure, piece
from trtspec.serving.executor import LogProb

LAST = {
    "text_output": "b",
    "finish_reason": "length",
    "num_input_tokens": 5,
    "num_output_tokens": 9,
    "total_draft_tokens": 129,
    "total_accepted_draft_tokens": 10,
    "num_spec_steps": 43,
    "acceptance_histogram": [39, 1, 0, 3],
}


def test_the_last_piece_has_vllms_metrics() -> None:
    """The numbers are those of the example in vLLM's pull request 48915."""
    assert piece(LAST, 0).speculation == {
        "mean_acceptance_length": 1.2325581395348837,
        "draft_acceptance_rate": 0.07751937984496124,
        "acceptance_histogram": [39, 1, 0, 3],
        "num_spec_steps": 43,
        "num_accepted_draft_tokens": 10,
        "num_draft_tokens": 129,
        "num_spec_tokens": 3,
    }


def test_cached_tokens_are_counted_or_unknown_as_the_model_says() -> None:
    for said, cached in ({}, None), ({"num_cached_tokens": 0}, 0), ({"num_cached_tokens": 4}, 4):
        assert piece({**LAST, **said}, 0).counts == TokenCounts(5, 9, cached)


def test_one_number_of_a_list_comes_without_brackets() -> None:
    found = piece({"text_output": "a", "output_log_probs": -0.5, "output_ids": 7, "sequence_index": 1}, 4)
    assert (found.choice, found.log_probs, found.token_ids) == (5, (LogProb(-0.5),), (7,))
    undrafted = {**LAST, "acceptance_histogram": 0, "num_spec_steps": 0, "total_draft_tokens": 0}
    told = piece({**undrafted, "total_accepted_draft_tokens": 0}, 0).speculation
    assert told
    assert (told["acceptance_histogram"], told["num_spec_tokens"]) == ([0], 0)
    assert (told["mean_acceptance_length"], told["draft_acceptance_rate"]) == (1.0, 0.0)
    assert "nothing_drafted" not in told


def test_an_answer_without_drafts_says_why() -> None:
    none = dict.fromkeys(("num_spec_steps", "total_draft_tokens", "total_accepted_draft_tokens"), 0)
    said = piece({**LAST, **none, "acceptance_histogram": [0, 0], "speculation": "off: policy"}, 0)
    assert said.speculation
    assert said.speculation["nothing_drafted"] == "a step with drafts takes longer here just now"


def test_rows_of_likeliest_tokens_come_one_after_the_other() -> None:
    said = {"text_output": "ab", "output_log_probs": [-0.5, -2.0], "output_ids": [7, 8]}
    said |= {"output_top_ids": [7, 1, 9, 8], "output_top_log_probs": [-0.5, -1.0, -0.25, -2.0]}
    first, second = piece(said, 0).log_probs
    assert first == LogProb(-0.5, ((7, -0.5), (1, -1.0)))
    assert second == LogProb(-2.0, ((9, -0.25), (8, -2.0)))
    one = {"text_output": "a", "output_log_probs": -0.5, "output_ids": 7}
    assert piece({**one, "output_top_ids": 3, "output_top_log_probs": -0.1}, 0).log_probs == (
        LogProb(-0.5, ((3, -0.1),)),
    )


@pytest.mark.parametrize(
    ("message", "status", "expected"),
    [
        (
            "400 stop_words is a string; it must be short",
            400,
            (400, "stop is a string; it must be short", "stop"),
        ),
        (
            "max_tokens is 0; it must be at least 1",
            400,
            (400, "max_tokens is 0; it must be at least 1", "max_tokens"),
        ),
        ("503 the queue is full; try again later", 400, (503, "the queue is full; try again later", None)),
        ("499 the request was cancelled", 500, (503, "the request was cancelled", None)),
        ("an error of the server", 500, (500, "an error of the server", None)),
    ],
)
def test_an_error_has_its_own_status_and_openais_field(message: str, status: int, expected: Any) -> None:
    error = failure(message, status)
    assert (error.status, error.message, error.param) == expected


@pytest.mark.parametrize(
    "field", ["text_input is 6005 tokens", "input_ids is 6005 tokens", "text_input is 9 characters"]
)
def test_a_prompt_that_is_too_long_has_openais_code(field: str) -> None:
    error = failure(f"400 {field}; it must be 1 to 1023 tokens", 400)
    assert (error.param, error.code) == ("prompt", "context_length_exceeded")
    assert failure("400 text_input is empty; it must be 1 to 1023 tokens", 400).code is None


def test_an_error_in_a_stream_is_raised() -> None:
    with pytest.raises(ApiError, match="the draft"):
        piece({"error": "500 the draft and the target failed"}, 0)


@pytest.mark.parametrize("message", ENDED_MODELS)
def test_the_openai_gateway_answers_503_when_the_model_has_ended(message: str) -> None:
    error = failure(message, 400)
    assert (error.status, error.param, error.headers) == (503, None, {"Retry-After": "1"})
    with pytest.raises(ApiError) as caught:
        piece({"error": message}, 0)
    assert caught.value.status == 503
