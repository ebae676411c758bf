"""A draft whose tokens are others than the executor's: it says the same, whatever is proposed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from tests.contract.conftest import LIMITS, VOCAB_SIZE, Subject, alone
from tests.fakes import vocabularies
from tests.fakes.scripted_executor import NextToken, ScriptedExecutor, babble
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest, Delta
from trtspec.serving.executor import Limits, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

PRINTABLE = [*map(chr, range(0x21, 0x7F)), "Ġ", "Ċ"]
MERGES = [(70, 71), (80, 81), (256, 257), (99, 12), (220, 70)]


def printable() -> tokenizers.Tokenizer:
    """As many tokens as the executor's model has, each a character of its own."""
    vocab = {letter: token_id for token_id, letter in enumerate(PRINTABLE)}
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    assert inner.get_vocab_size() == VOCAB_SIZE
    return inner


def said(
    subject: Subject, draft: NextToken, tokenizer: Tokenizer, *requests: CompletionRequest
) -> list[Delta]:
    """What is said of requests that run at once."""
    target, length = subject.load(), LIMITS["max_seq_len"]
    proposing = ScriptedExecutor(Limits(4, length - 1, length, 0, tokenizer.size), draft)

    async def main() -> list[Delta]:
        coordinator = assemble(target, proposing, Tokenizer(printable()), draft_tokenizer=tokenizer)
        return await asyncio.gather(*map(coordinator.complete, requests))

    return asyncio.run(main())


def asked(subject: Subject, number: int) -> CompletionRequest:
    """Every other one has an end token, which its text comes upon."""
    prompt = [1 + number, 40, 2, 71]
    end_id = subject.next_token([*prompt, subject.next_token(prompt)]) if number % 2 else NO_END
    return CompletionRequest(prompt_token_ids=prompt, max_tokens=24, num_draft_tokens=4, end_id=end_id)


def test_whatever_is_proposed_the_text_is_the_executors(subject: Subject) -> None:
    theirs = Tokenizer(vocabularies.byte_level(MERGES))
    requests = [asked(subject, number) for number in range(2)]
    for request, delta in zip(requests, said(subject, babble(theirs.size), theirs, *requests), strict=True):
        assert delta.token_ids == alone(subject, request)


def test_the_same_model_under_other_ids_is_accepted_whole(subject: Subject) -> None:
    inner, new = vocabularies.shuffled(printable())
    old = {token_id: number for number, token_id in enumerate(new)}

    def draft(sequence: Sequence[int]) -> int:
        return new[subject.next_token([old[token_id] for token_id in sequence])]

    requests = [asked(subject, number) for number in (0, 2)]
    for request, delta in zip(requests, said(subject, draft, Tokenizer(inner), *requests), strict=True):
        assert delta.token_ids == alone(subject, request)
        assert delta.completion is not None
        counts = delta.completion.speculation
        assert counts.num_accepted_draft_tokens == counts.num_draft_tokens > 16


def test_a_sampled_text_is_that_of_the_target_alone(subject: Subject) -> None:
    inner, _ = vocabularies.shuffled(printable())
    sampling = SamplingConfig(temperature=0.8, top_k=20, seed=7)
    plain, drafted = (
        CompletionRequest(
            prompt_token_ids=[5, 40, 2], max_tokens=12, end_id=NO_END, sampling=sampling, num_draft_tokens=k
        )
        for k in (0, 4)
    )
    [alone] = said(subject, babble(VOCAB_SIZE), Tokenizer(inner), plain)
    [beside] = said(subject, babble(VOCAB_SIZE), Tokenizer(inner), drafted)
    if subject.load().limits.matches_samples:  # Of the others `test_sampled_drafts.py` tells.
        assert beside.token_ids == alone.token_ids
