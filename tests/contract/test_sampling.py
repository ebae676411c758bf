"""Sampling of the torch executor: exact distributions, and numbers that depend on the seed alone."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from tests.contract.conftest import Answers, Torch
from trtspec.serving.executor import Request, SamplingConfig

PROMPT = [12, 24, 48]
WARM = SamplingConfig(temperature=1.3, top_k=20, top_p=0.9, seed=77)


def exact(subject: Torch, prompt: list[int], sampling: SamplingConfig) -> torch.Tensor:
    """The distribution of the next token, by transformers."""
    logits = subject.logits(prompt)[-1:].clone()
    if sampling.temperature is not None:
        logits = TemperatureLogitsWarper(sampling.temperature)(None, logits)
    if sampling.min_p:
        warper: Any = MinPLogitsWarper(sampling.min_p)
        logits = warper(None, logits)
    if sampling.top_k:
        logits = TopKLogitsWarper(sampling.top_k)(None, logits)
    if sampling.top_p is not None and sampling.top_p < 1:
        logits = TopPLogitsWarper(sampling.top_p)(None, logits)
    probabilities: torch.Tensor = logits.softmax(-1)[0].double()
    return probabilities


def p_value(tokens: list[int], probabilities: torch.Tensor) -> float:
    """Pearson's chi-square; tokens expected fewer than five times are counted together."""
    observed = torch.bincount(torch.tensor(tokens), minlength=len(probabilities)).double()
    expected = probabilities * len(tokens)
    assert observed[expected == 0].sum() == 0, "a token that the filters exclude"
    rare = expected < 5
    observed = torch.cat([observed[~rare], observed[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    there = expected > 0
    statistic = ((observed - expected)[there] ** 2 / expected[there]).sum()
    freedom = (there.sum() - 1).double() / 2
    return float(torch.special.gammaincc(freedom, statistic / 2))


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(temperature=1.0),
        SamplingConfig(temperature=0.6),
        SamplingConfig(temperature=1.7, top_k=8),
        SamplingConfig(top_p=0.7),
        SamplingConfig(temperature=1.4, top_k=30, top_p=0.8),
        SamplingConfig(top_k=0, temperature=1.2, top_p=1.0),
        SamplingConfig(top_k=3),
        SamplingConfig(temperature=1.6, min_p=0.2),
        SamplingConfig(min_p=0.1),
        SamplingConfig(temperature=1.4, top_k=30, top_p=0.8, min_p=0.05),
    ],
)
def test_first_tokens_have_the_exact_distribution(
    torch_subject: Torch, answers: Answers, sampling: SamplingConfig
) -> None:
    requests = [Request(PROMPT, 1, sampling=replace(sampling, seed=seed)) for seed in range(3000)]
    responses = answers(torch_subject.load(max_batch_size=64), *requests)
    tokens = [response.token_ids[0] for response in responses]
    assert p_value(tokens, exact(torch_subject, PROMPT, sampling)) > 1e-3


def test_second_tokens_are_independent_of_the_first(torch_subject: Torch, answers: Answers) -> None:
    """Consecutive numbers of the stream: the distribution of token 1 given a token 0."""
    requests = [
        Request(PROMPT, 2, sampling=SamplingConfig(temperature=1.0, top_k=2, seed=seed))
        for seed in range(3000)
    ]
    pairs = [response.token_ids for response in answers(torch_subject.load(max_batch_size=64), *requests)]
    for first in {pair[0] for pair in pairs}:
        seconds = [pair[1] for pair in pairs if pair[0] == first]
        expected = exact(torch_subject, [*PROMPT, first], SamplingConfig(temperature=1.0, top_k=2))
        assert len(seconds) < 100 or p_value(seconds, expected) > 1e-3


def test_a_seed_fixes_the_text_whatever_the_batch(torch_subject: Torch, answers: Answers) -> None:
    [alone] = answers(torch_subject.load(), Request(PROMPT, 30, sampling=WARM))
    others = [Request([i + 1, 9], 25, sampling=SamplingConfig(temperature=1.0, seed=i)) for i in range(5)]
    together = answers(torch_subject.load(), *others[:2], Request(PROMPT, 30, sampling=WARM), *others[2:])
    assert together[2].token_ids == alone.token_ids
    other_seed = SamplingConfig(temperature=1.3, top_k=20, top_p=0.9, seed=78)
    [different] = answers(torch_subject.load(), Request(PROMPT, 30, sampling=other_seed))
    assert different.token_ids != alone.token_ids


def test_without_a_seed_texts_differ(torch_subject: Torch, answers: Answers) -> None:
    request = Request(PROMPT, 20, sampling=SamplingConfig(temperature=1.5))
    first, second = answers(torch_subject.load(), request, request)
    assert first.token_ids != second.token_ids


def test_a_continuation_draws_the_same_numbers(torch_subject: Torch, answers: Answers) -> None:
    executor = torch_subject.load()
    [whole] = answers(executor, Request(PROMPT, 30, sampling=WARM))
    for start in (1, 7, 29):
        later = SamplingConfig(WARM.temperature, WARM.top_k, WARM.top_p, seed=77 + start)
        text = whole.token_ids
        [rest] = answers(executor, Request(PROMPT + text[:start], 30 - start, sampling=later))
        assert rest.token_ids == text[start:]


@pytest.mark.parametrize("seed", [0, 5, 2**40, -3])
def test_speculation_gives_the_plain_sample(torch_subject: Torch, answers: Answers, seed: int) -> None:
    """The draft is the target at another temperature; the shared noise makes most of it accepted."""
    executor = torch_subject.load()

    def warm(number: int, temperature: float) -> SamplingConfig:
        return SamplingConfig(temperature, 20, 0.9, seed=number)

    [plain] = answers(executor, Request(PROMPT, 48, sampling=warm(seed, 1.3)))
    text: list[int] = []
    accepted = proposed = 0
    while len(text) < 43:
        [draft] = answers(executor, Request(PROMPT + text, 4, sampling=warm(seed + len(text), 1.0)))
        request = Request(
            PROMPT + text, 5, draft_token_ids=draft.token_ids, sampling=warm(seed + len(text), 1.3)
        )
        [verified] = answers(executor, request)
        accepted, proposed = accepted + len(verified.token_ids) - 1, proposed + 4
        text += verified.token_ids
    assert text == plain.token_ids[: len(text)]
    assert accepted / proposed > 0.4


def test_a_greedy_and_a_sampled_request_share_a_step(torch_subject: Torch, answers: Answers) -> None:
    greedy = Request(PROMPT, 12)
    [alone] = answers(torch_subject.load(), greedy)
    together = answers(torch_subject.load(), Request(PROMPT, 12, sampling=WARM), greedy)
    assert together[1].token_ids == alone.token_ids


@pytest.mark.parametrize(
    "sampling",
    [
        SamplingConfig(),
        SamplingConfig(top_k=1, temperature=0.7),
        SamplingConfig(temperature=0.0, top_p=0.5),
        SamplingConfig(temperature=1e-6),
    ],
)
def test_ways_to_say_greedy(torch_subject: Torch, answers: Answers, sampling: SamplingConfig) -> None:
    greedy, other = answers(torch_subject.load(), Request(PROMPT, 16), Request(PROMPT, 16, sampling=sampling))
    assert greedy.token_ids == other.token_ids


def test_repetition_penalty_is_that_of_transformers(torch_subject: Torch, answers: Answers) -> None:
    penalty = RepetitionPenaltyLogitsProcessor(1.8)
    text = list(PROMPT)
    for _ in range(30):
        logits = torch_subject.logits(text)[-1:].clone()
        text.append(int(penalty(torch.tensor([text]), logits).argmax()))
    sampling = SamplingConfig(repetition_penalty=1.8)
    [plain] = answers(torch_subject.load(), Request(PROMPT, 30, sampling=sampling))
    assert plain.token_ids == text[3:]
    draft = text[3:8]
    [verified] = answers(torch_subject.load(), Request(PROMPT, 6, draft_token_ids=draft, sampling=sampling))
    assert verified.token_ids == text[3:9]


def test_presence_and_frequency_penalties(torch_subject: Torch, answers: Answers) -> None:
    """One subtraction for a token that is there, one more for each time that it is."""
    text = list(PROMPT)
    for _ in range(30):
        counts = torch.bincount(torch.tensor(text), minlength=96)
        logits = torch_subject.logits(text)[-1] - 0.9 * (counts > 0) - 0.4 * counts
        text.append(int(logits.argmax()))
    sampling = SamplingConfig(presence_penalty=0.9, frequency_penalty=0.4)
    [plain] = answers(torch_subject.load(), Request(PROMPT, 30, sampling=sampling))
    assert plain.token_ids == text[3:]
    [verified] = answers(
        torch_subject.load(), Request(PROMPT, 6, draft_token_ids=text[3:8], sampling=sampling)
    )
    assert verified.token_ids == text[3:9]


def test_min_tokens_keeps_the_end_away(torch_subject: Torch, answers: Answers) -> None:
    [free] = answers(torch_subject.load(), Request(PROMPT, 20))
    end_id = free.token_ids[3]
    position = free.token_ids.index(end_id)
    request = Request(PROMPT, 20, end_id=end_id, sampling=SamplingConfig(min_tokens=position + 1))
    [held] = answers(torch_subject.load(), request)
    logits = torch_subject.logits(PROMPT + free.token_ids[:position])[-1].clone()
    logits[end_id] = -math.inf
    assert held.token_ids[: position + 1] == [*free.token_ids[:position], int(logits.argmax())]
    draft = held.token_ids[: position + 1]
    [verified] = answers(
        torch_subject.load(),
        Request(PROMPT, 20, draft_token_ids=draft, end_id=end_id, sampling=request.sampling),
    )
    assert verified.token_ids[: position + 1] == draft
