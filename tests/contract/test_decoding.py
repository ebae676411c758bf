"""A request without a draft is ordinary decoding (rules 5 and 6 of `trtspec.serving.executor`)."""

from __future__ import annotations

import asyncio

import pytest
import torch

from tests.contract.conftest import Answers, Ask, Continuation, Subject, Torch
from trtspec.serving.executor import FinishReason, Request, Response

PROMPT = [5, 17, 33, 60]


def test_greedy_text_is_that_of_transformers_generate(torch_subject: Torch, answers: Answers) -> None:
    for prompt in (PROMPT, [1], list(range(40))):
        ids = torch.tensor([prompt])
        generated = torch_subject.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False
        )
        [response] = answers(torch_subject.load(), Request(prompt, 24))
        assert response.token_ids == generated[0, len(prompt) :].tolist()


@pytest.mark.parametrize("end_id", [None, -1])
def test_without_an_end_token_nothing_ends_the_text(
    subject: Subject, continuation: Continuation, answers: Answers, end_id: int | None
) -> None:
    [response] = answers(subject.load(), Request(PROMPT, 12, end_id=end_id))
    assert response.token_ids == continuation(PROMPT, 12)


def test_an_end_token_that_would_come_after_the_last(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    text = continuation(PROMPT, 30)
    position = next(i for i in range(2, 30) if text[i] not in text[:i])
    [response] = answers(subject.load(), Request(PROMPT, position, end_id=text[position]))
    assert (response.token_ids, response.finish_reason) == (text[:position], FinishReason.LENGTH)


def test_streaming_tells_each_token_once(subject: Subject, continuation: Continuation, ask: Ask) -> None:
    async def main() -> list[Response]:
        return await ask(subject.load(), Request(PROMPT, 8, streaming=True))

    responses = asyncio.run(main())
    assert [response.token_ids for response in responses] == [[token] for token in continuation(PROMPT, 8)]
    assert [response.is_final for response in responses] == [False] * 7 + [True]
    assert [response.finish_reason for response in responses[:-1]] == [FinishReason.NOT_FINISHED] * 7


def test_a_stream_that_meets_the_end_token_closes_with_nothing_new(
    subject: Subject, continuation: Continuation, ask: Ask
) -> None:
    text = continuation(PROMPT, 30)
    position = next(i for i in range(2, 30) if text[i] not in text[:i])

    async def main() -> list[Response]:
        return await ask(subject.load(), Request(PROMPT, 30, end_id=text[position], streaming=True))

    responses = asyncio.run(main())
    assert [response.token_ids for response in responses] == [[token] for token in text[:position]] + [[]]
    assert responses[-1].finish_reason is FinishReason.END_ID


def test_an_engine_without_the_mode_decodes(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    [response] = answers(subject.load(max_draft_len=0), Request(PROMPT, 9))
    assert response.token_ids == continuation(PROMPT, 9)
