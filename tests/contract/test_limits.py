"""An executor refuses or shortens what exceeds its limits (rule 8 of `trtspec.serving.executor`).

The protocol has no beam search to refuse.
"""

from __future__ import annotations

import asyncio
import math

import pytest

from tests.contract.conftest import Answers, Continuation, Subject
from trtspec.serving.executor import Limits, Request, SamplingConfig

PROMPT = [3, 9, 27]
REFUSED = {
    "empty prompt": (Request([], 4), "empty"),
    "prompt too long": (Request([1] * 128, 4), "Prompt length (128) exceeds maximum input length (127)"),
    "no tokens wanted": (Request(PROMPT, 0), "0"),
    "negative tokens wanted": (Request(PROMPT, -3), "-3"),
    "draft too long": (
        Request(PROMPT, 8, draft_token_ids=[1] * 7),
        "Draft tokens length (7) exceeds maximum draft tokens length (6)",
    ),
    "token over the vocabulary": (Request([3, 96], 4), "96"),
    "negative token": (Request([3, -1], 4), "-1"),
    "draft token over the vocabulary": (Request(PROMPT, 4, draft_token_ids=[96]), "96"),
    "end_id over the vocabulary": (Request(PROMPT, 4, end_id=96), "EndId (96)"),
    "bad word over the vocabulary": (Request(PROMPT, 4, bad_words=[[3, 96]]), "96"),
    "bad word of nothing": (Request(PROMPT, 4, bad_words=[[]]), "Bad word without a token"),
    "biased token over the vocabulary": (Request(PROMPT, 4, embedding_bias={96: 1.0}), "96"),
    "a bias that is no number": (
        Request(PROMPT, 4, embedding_bias={3: math.nan}),
        "bias of token id 3 (nan)",
    ),
    "end_id below -1": (Request(PROMPT, 4, end_id=-2), "EndId (-2)"),
}
SAMPLING = [
    *(("temperature", value) for value in (math.nan, math.inf, -0.5)),
    *(("top_p", value) for value in (0.0, -0.1, 1.5, math.nan)),
    ("top_k", -1),
    *(("min_p", value) for value in (-0.1, 1.5, math.nan)),
    *(("repetition_penalty", value) for value in (0.0, -1.0, math.nan)),
    ("presence_penalty", math.nan),
    ("frequency_penalty", math.inf),
    ("min_tokens", -1),
]
REFUSED |= {
    f"{name} {value}": (Request(PROMPT, 4, sampling=SamplingConfig(**{name: value})), name)  # type: ignore[arg-type]
    for name, value in SAMPLING
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_line_while_others_are_served(
    subject: Subject, continuation: Continuation, answers: Answers, name: str
) -> None:
    request, text = REFUSED[name]
    before, refused, after = answers(subject.load(), Request(PROMPT, 4), request, Request(PROMPT, 4))
    assert (refused.token_ids, refused.is_final) == ([], True)
    assert refused.error is not None
    assert text in refused.error
    assert "\n" not in refused.error
    assert before.token_ids == after.token_ids == continuation(PROMPT, 4)


def test_any_draft_is_too_long_without_the_mode(subject: Subject, answers: Answers) -> None:
    [response] = answers(subject.load(max_draft_len=0), Request(PROMPT, 4, draft_token_ids=[1]))
    assert response.error is not None
    assert "Draft tokens length (1) exceeds maximum draft tokens length (0)" in response.error


def test_max_tokens_is_reduced_to_the_sequence(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    """Without a draft, TensorRT-LLM keeps room for the longest one."""
    [response] = answers(subject.load(max_seq_len=32), Request(PROMPT, 1000))
    assert response.token_ids == continuation(PROMPT, 32 - len(PROMPT) - 6)
    [response] = answers(subject.load(max_seq_len=32, max_draft_len=0), Request(PROMPT, 1000))
    assert response.token_ids == continuation(PROMPT, 32 - len(PROMPT))


def test_max_tokens_of_a_verification_is_reduced_too(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    prompt = [(7 * i) % 96 for i in range(28)]
    text = continuation(prompt, 4)
    [response] = answers(subject.load(max_seq_len=32), Request(prompt, 4, draft_token_ids=text[:3]))
    assert response.token_ids == text[:1]


def test_a_draft_is_truncated_to_the_longest_input(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    prompt = [(7 * i) % 96 for i in range(29)]
    text = continuation(prompt, 7)
    executor = subject.load(max_seq_len=33)
    [response] = answers(executor, Request(prompt, 7, draft_token_ids=text[:6]))
    assert response.token_ids == text[:1]
    assert response.error is None


def test_a_prompt_that_leaves_no_room_is_an_error(subject: Subject, answers: Answers) -> None:
    [response] = answers(subject.load(max_seq_len=32), Request([1] * 27, 4))
    assert response.error is not None
    assert "no room" in response.error


def test_the_longest_prompt_is_served(subject: Subject, continuation: Continuation, answers: Answers) -> None:
    prompt = [(5 * i) % 96 for i in range(127)]
    [response] = answers(subject.load(max_draft_len=0), Request(prompt, 4))
    assert response.token_ids == continuation(prompt, 1)


def test_the_limits_are_known(subject: Subject) -> None:
    async def main() -> Limits:
        return subject.load().limits

    limits = asyncio.run(main())
    assert (limits.max_batch_size, limits.max_input_len, limits.max_seq_len) == (4, 127, 128)
    assert (limits.max_draft_len, limits.vocab_size) == (6, 96)
