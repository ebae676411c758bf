"""An engine may discard the end of a draft and not say so (`fitDraftTokens`, microBatchScheduler.cpp)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

import pytest
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.contract.conftest import Answers, Continuation, Subject, alone
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.trimming import Keep, sometimes
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.executor import Limits, Request
from trtspec.serving.tokenizer import Tokenizer

PROMPT = [8, 40, 2, 71, 30]
K = 6


@pytest.mark.parametrize("kept", range(1, K + 1))
def test_a_shorter_draft_is_verified(
    trimmed: Callable[[Keep], Subject], continuation: Continuation, answers: Answers, kept: int
) -> None:
    """The target's own token comes after what was kept, though the rest was right as well."""
    text = continuation(PROMPT, K + 1)
    request = Request(PROMPT, K + 1, draft_token_ids=text[:K])
    [response] = answers(trimmed(lambda length: min(kept, length)).load(), request)
    assert response.token_ids == text[: kept + 1]


def test_without_any_draft_it_is_ordinary_decoding(
    trimmed: Callable[[Keep], Subject], continuation: Continuation, answers: Answers
) -> None:
    text = continuation(PROMPT, K + 1)
    wrong = [(token + 1) % 96 for token in text[:K]]
    [response] = answers(trimmed(lambda length: 0).load(), Request(PROMPT, K + 1, draft_token_ids=wrong))
    assert response.token_ids == text


@pytest.mark.parametrize(
    "num_draft_tokens", [4, *(pytest.param(length, marks=pytest.mark.sweep) for length in (1, K))]
)
def test_no_text_is_cut_short(
    trimmed: Callable[[Keep], Subject], subject: Subject, num_draft_tokens: int
) -> None:
    """Three verifications of ten are trimmed, also to nothing; every text is the target's own to its end."""
    target, dice = trimmed(sometimes(num_draft_tokens)).load(), random.Random(3)
    limits = Limits(max_batch_size=4, max_input_len=127, max_seq_len=128, max_draft_len=0, vocab_size=96)

    def drafted(sequence: Sequence[int]) -> int:
        token = subject.next_token(sequence)
        return token if dice.random() < 0.8 else (token + 1) % 96

    requests = [
        CompletionRequest(
            prompt_token_ids=[1 + i, 40, 2],
            max_tokens=30,
            num_draft_tokens=num_draft_tokens,
            end_id=subject.next_token([1 + i, 40, 2, 7]) if i % 2 else -1,
        )
        for i in range(8)
    ]

    async def main() -> list[Delta]:
        coordinator = assemble(target, ScriptedExecutor(limits, drafted), _tokenizer())
        return await asyncio.gather(*(coordinator.complete(request) for request in requests))

    for request, delta in zip(requests, asyncio.run(main()), strict=True):
        assert delta.token_ids == alone(subject, request)
        assert delta.completion is not None
        assert delta.completion.speculation.draft_acceptance_rate <= 1


def _tokenizer() -> Tokenizer:
    vocab = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.decoder = decoders.ByteLevel()
    return Tokenizer(inner)
