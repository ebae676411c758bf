"""Prefixes are found in the torch executor's cache, and change no result (rule 1 of the contract)."""

from __future__ import annotations

import asyncio
import random

from tests.contract.conftest import Answers, Ask, Continuation, Torch
from trtspec.serving.executor import Request, Response

PROMPT = [(13 * i) % 96 for i in range(40)]


def test_a_round_computes_only_what_is_new(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    executor, text = torch_subject.untrimmed(), continuation_of(PROMPT, 12)
    answers(executor, Request(PROMPT, 5, draft_token_ids=text[:4]))
    rows, reused = executor.stats.rows, executor.stats.reused_tokens
    assert (rows, reused) == (44, 0)
    # The four accepted tokens are in the cache, the target's own is not.
    [response] = answers(executor, Request(PROMPT + text[:5], 5, draft_token_ids=text[5:9]))
    assert (response.token_ids, response.num_reused) == (text[5:10], 44)
    assert executor.stats.rows - rows == 1 + 4
    assert executor.stats.reused_tokens - reused == 44


def test_rejected_tokens_are_not_reused(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    executor, text = torch_subject.untrimmed(), continuation_of(PROMPT, 12)
    wrong = [(token + 1) % 96 for token in text[1:4]]
    answers(executor, Request(PROMPT, 5, draft_token_ids=[text[0], *wrong]))
    [response] = answers(executor, Request(PROMPT + text[:2], 5, draft_token_ids=text[2:6]))
    assert response.token_ids == text[2:7]
    assert executor.stats.reused_tokens == 41


def test_the_cache_of_decoded_tokens_is_reused_by_a_prompt_that_repeats_them(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    executor, text = torch_subject.untrimmed(), continuation_of(PROMPT, 12)
    answers(executor, Request(PROMPT, 6))
    [response] = answers(executor, Request(PROMPT + text[:6], 6))
    assert response.token_ids == text[6:]
    assert executor.stats.reused_tokens == 40 + 5


def test_the_last_prompt_token_is_always_computed(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    executor = torch_subject.untrimmed()
    for _ in range(3):
        [response] = answers(executor, Request(PROMPT, 3))
        assert response.token_ids == continuation_of(PROMPT, 3)
    assert executor.stats.reused_tokens == 2 * 39


def test_a_prompt_of_a_busy_sequence_is_copied(
    torch_subject: Torch, continuation_of: Continuation, ask: Ask
) -> None:
    prompt = PROMPT * 2

    async def main() -> tuple[Response, Response, int]:
        executor = torch_subject.untrimmed()
        first = asyncio.create_task(ask(executor, Request(prompt, 30)))
        while executor.stats.steps < 5:
            await asyncio.sleep(0)
        [second] = await ask(executor, Request([*prompt, 4], 10))
        return (await first)[0], second, executor.stats.reused_tokens

    first, second, reused = asyncio.run(main())
    assert first.token_ids == continuation_of(prompt, 30)
    assert second.token_ids == continuation_of([*prompt, 4], 10)
    assert reused == 80


def test_texts_that_share_and_part_at_random(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    """More texts than slots, sent again and again with other tails, in batches."""
    dice, executor = random.Random(1), torch_subject.untrimmed(max_batch_size=2)
    texts = [[dice.randrange(96) for _ in range(dice.randrange(1, 30))] for _ in range(8)]
    for _ in range(30):
        chosen = [dice.randrange(8) for _ in range(3)]
        for index in chosen:
            cut = dice.randrange(1, len(texts[index]) + 1)
            texts[index] = texts[index][:cut] + [dice.randrange(96) for _ in range(dice.randrange(6))]
            texts[index] = texts[index][:80]
        drafts = [continuation_of(texts[index], 4) if dice.random() < 0.5 else [] for index in chosen]
        requests = [
            Request(list(texts[index]), 5, draft_token_ids=draft)
            for index, draft in zip(chosen, drafts, strict=True)
        ]
        for index, response in zip(chosen, answers(executor, *requests), strict=True):
            assert response.token_ids == continuation_of(texts[index], 5)
        for index in chosen:
            texts[index] = (texts[index] + continuation_of(texts[index], 2))[:80]
    assert executor.stats.reused_tokens > 0


def test_a_long_prompt_is_computed_in_chunks(
    torch_subject: Torch, continuation_of: Continuation, answers: Answers
) -> None:
    executor = torch_subject.untrimmed(max_num_tokens=16)
    short = [Request([i + 1, 2], 12) for i in range(3)]
    text = continuation_of(PROMPT, 7)
    *others, response = answers(executor, *short, Request(PROMPT, 7, draft_token_ids=text[:6]))
    assert response.token_ids == text
    for request, other in zip(short, others, strict=True):
        assert other.token_ids == continuation_of(request.input_token_ids, 12)
    assert executor.stats.rows == 3 * (2 + 11) + 40 + 6
