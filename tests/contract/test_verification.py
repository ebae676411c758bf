"""A request with a draft is one verification (rules 2 to 5 of `trtspec.serving.executor`)."""

from __future__ import annotations

import asyncio
import random

import pytest

from tests.contract.conftest import Answers, Ask, Continuation, Subject
from trtspec.serving.executor import FinishReason, Request, Response

PROMPT = [8, 40, 2, 71, 30]
K = 6


def wrong(token: int) -> int:
    return (token + 1) % 96


@pytest.mark.parametrize("accepted", range(K + 1))
def test_returns_what_is_accepted_and_one_more(
    subject: Subject, continuation: Continuation, answers: Answers, accepted: int
) -> None:
    text = continuation(PROMPT, K + 1)
    draft = text[:K]
    if accepted < K:
        draft[accepted] = wrong(draft[accepted])
    [response] = answers(subject.load(), Request(PROMPT, K + 1, draft_token_ids=draft))
    assert response.token_ids == text[: accepted + 1]
    assert response.is_final


def test_nothing_after_the_first_mismatch_counts(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    """The target is asked after its own text, not after the draft's."""
    text = continuation(PROMPT, K + 1)
    draft = [*text[:2], wrong(text[2])]
    follow = continuation([*PROMPT, *draft], 3)
    [response] = answers(subject.load(), Request(PROMPT, K + 1, draft_token_ids=draft + follow))
    assert response.token_ids == text[:3]


@pytest.mark.parametrize("max_tokens", [K + 1, K + 2, 50])
def test_is_final_whatever_max_tokens_says(
    subject: Subject, continuation: Continuation, answers: Answers, max_tokens: int
) -> None:
    text = continuation(PROMPT, K + 1)
    [response] = answers(subject.load(), Request(PROMPT, max_tokens, draft_token_ids=text[:K]))
    assert (response.token_ids, response.is_final) == (text, True)


@pytest.mark.parametrize("max_tokens", range(1, K + 1))
def test_a_smaller_max_tokens_truncates(
    subject: Subject, continuation: Continuation, answers: Answers, max_tokens: int
) -> None:
    text = continuation(PROMPT, K + 1)
    [response] = answers(subject.load(), Request(PROMPT, max_tokens, draft_token_ids=text[:K]))
    assert response.token_ids == text[:max_tokens]


@pytest.mark.parametrize("position", range(K + 1))
@pytest.mark.parametrize("proposed", [True, False])
def test_the_end_token_ends_it_and_is_not_returned(
    subject: Subject, continuation: Continuation, answers: Answers, position: int, proposed: bool
) -> None:
    """`proposed`: the draft contains the end token, or it is wrong there, or it is over."""
    prompt = list(PROMPT)
    while (text := continuation(prompt, K + 1))[position] in text[:position]:
        prompt.append(text[0])
    draft = text[:K]
    if not proposed and position < K:
        draft[position] = wrong(draft[position])
    request = Request(prompt, K + 1, draft_token_ids=draft, end_id=text[position])
    executor = subject.load()
    [response] = answers(executor, request)
    assert response.token_ids == text[:position]
    # Not every engine says that the end was met; then the next round does.
    if response.finish_reason is not FinishReason.END_ID:
        [response] = answers(executor, Request(prompt + response.token_ids, 1, end_id=text[position]))
        assert (response.token_ids, response.finish_reason) == ([], FinishReason.END_ID)


def test_an_end_token_that_only_the_draft_proposes_is_rejected(
    subject: Subject, continuation: Continuation, answers: Answers
) -> None:
    text = continuation(PROMPT, K + 1)
    end_id = next(token for token in range(96) if token not in text)
    draft = [text[0], end_id, text[2]]
    [response] = answers(subject.load(), Request(PROMPT, 4, draft_token_ids=draft, end_id=end_id))
    assert response.token_ids == text[:2]


def test_a_streaming_verification_is_one_response(
    subject: Subject, continuation: Continuation, ask: Ask
) -> None:
    text = continuation(PROMPT, K + 1)

    async def main() -> list[Response]:
        return await ask(subject.load(), Request(PROMPT, K + 1, draft_token_ids=text[:K], streaming=True))

    assert [response.token_ids for response in asyncio.run(main())] == [text]


def test_an_end_that_is_told_was_met(subject: Subject, continuation: Continuation, answers: Answers) -> None:
    """Rule 5: a response without tokens met the end token, and so did one whose reason says it."""
    dice, executor = random.Random(5), subject.load()
    for _ in range(60):
        prompt = [dice.randrange(96) for _ in range(dice.randrange(1, 6))]
        text = continuation(prompt, K + 1)
        draft = [token if dice.random() < 0.8 else wrong(token) for token in text[: dice.randrange(1, K + 1)]]
        end_id = dice.choice([None, *text])
        request = Request(prompt, len(draft) + 1, draft_token_ids=draft, end_id=end_id)
        [response] = answers(executor, request)
        new = response.token_ids
        agreed = next((i for i, token in enumerate(draft) if token != text[i]), len(draft))
        whole = text[: agreed + 1]
        assert new == (whole[: whole.index(end_id)] if end_id in whole else whole)
        if not new or response.finish_reason is FinishReason.END_ID:
            assert end_id in whole


@pytest.mark.parametrize("length", range(1, K + 1))
def test_rounds_give_the_plain_text(
    subject: Subject, continuation: Continuation, answers: Answers, length: int
) -> None:
    """Round after round with a draft that is right three times of four."""
    dice, executor = random.Random(length), subject.load()
    text = continuation(PROMPT, 40)
    generated: list[int] = []
    while len(generated) < 40 - length:
        ahead = text[len(generated) : len(generated) + length]
        draft = [token if dice.random() < 0.75 else wrong(token) for token in ahead]
        [response] = answers(executor, Request(PROMPT + generated, length + 1, draft_token_ids=draft))
        generated += response.token_ids
    assert generated == text[: len(generated)]
