"""A request with a draft is one verification (rules 2 to 5 of `trtspec.serving.executor`)."""

from __future__ import annotations

import random

from tests.contract.conftest import Answers, Continuation, Subject
from trtspec.serving.executor import FinishReason, Request

PROMPT = [8, 40, 2, 71, 30]
K = 6


def wrong(token: int) -> int:
    return (token + 1) % 96


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
