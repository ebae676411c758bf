"""Options that change logits, in ordinary decoding and in verifications, held to transformers' processors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
)

from tests.contract.conftest import Answers, Torch
from tests.contract.test_sampling import p_value
from trtspec.serving.executor import Executor, Request, SamplingConfig

PROMPT = [12, 24, 48]
N = 1500
WARM = SamplingConfig(temperature=1.3, top_k=16)
BIAS = {5: 2.5, 11: -4.0, 24: 1.0, 60: 3.0, 95: -1e6}


@dataclass(frozen=True)
class Option:
    """A request that has it, and transformers' processors for the same, in the order of TensorRT-LLM."""

    request: Request
    processors: Sequence[Any]


def biased(bias: dict[int, float]) -> SequenceBiasLogitsProcessor:
    return SequenceBiasLogitsProcessor([[[token_id], value] for token_id, value in bias.items()])


def logits_after(subject: Torch, text: list[int], processors: Sequence[Any]) -> torch.Tensor:
    """Processed logits of the next token, `[vocab]`."""
    ids: Any = torch.tensor([text])
    scores: Any = subject.logits(text)[-1:].clone()
    return LogitsProcessorList(processors)(ids, scores)[0]


def greedy_text(subject: Torch, processors: Sequence[Any], length: int) -> list[int]:
    text = list(PROMPT)
    for _ in range(length):
        text.append(int(logits_after(subject, text, processors).argmax()))
    return text[len(PROMPT) :]


def in_rounds(executor: Executor, answers: Answers, request: Request, text: list[int]) -> list[int]:
    """What verifications say of drafts that are `text`, with every third one wrong at its second token."""
    said: list[int] = []
    number = 0
    while len(said) < len(text):
        draft = text[len(said) : len(said) + 4]
        if number % 3 == 2 and len(draft) > 1:
            draft[1] = (draft[1] + 1) % 96
        ask = replace(request, input_token_ids=PROMPT + said, max_tokens=5, draft_token_ids=draft)
        [response] = answers(executor, ask)
        said, number = said + response.token_ids, number + 1
    return said[: len(text)]


def banned(words: list[list[int]]) -> NoBadWordsLogitsProcessor:
    return NoBadWordsLogitsProcessor(words)


WORDS = [[71], [24, 48, 55], [90, 93], [13, 85, 47]]
GREEDY = {
    "bad words": Option(Request(PROMPT, 40, bad_words=WORDS), [banned(WORDS)]),
    "bias": Option(Request(PROMPT, 40, embedding_bias=BIAS), [biased(BIAS)]),
}


@pytest.mark.parametrize("subject", ["torch", "tensorrt_llm", "bls"], indirect=True)
@pytest.mark.parametrize("name", GREEDY)
def test_the_greedy_text_is_that_of_transformers(subject: Torch, answers: Answers, name: str) -> None:
    option, executor = GREEDY[name], subject.load()
    text = greedy_text(subject, option.processors, 40)
    assert text != greedy_text(subject, [], 40), "the option changes nothing, so this would prove nothing"
    [plain] = answers(executor, option.request)
    assert plain.token_ids == text
    assert in_rounds(executor, answers, option.request, text) == text


class CountedPenalties(LogitsProcessor):
    """OpenAI's formula, over the prompt too, as TensorRT-LLM has it; transformers has no such processor."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        counts = torch.nn.functional.one_hot(input_ids, scores.shape[-1]).sum(1)
        return scores - self._frequency * counts - self._presence * (counts > 0).float()


OFTEN = [12, 24, 48, 24, 24, 70, 48]
SOME_WORDS = [[24, 48, 22], [81], [48, 57], [55, 22], [48, 55, 37], [24, 48, 55, 4], [12, 4]]
SAMPLED = {
    "min_p": Option(
        Request(PROMPT, 2, sampling=replace(WARM, min_p=0.25)),
        [TemperatureLogitsWarper(1.3), MinPLogitsWarper(0.25), TopKLogitsWarper(16)],
    ),
    "bias": Option(
        Request(PROMPT, 2, sampling=WARM, embedding_bias=BIAS),
        [biased(BIAS), TemperatureLogitsWarper(1.3), TopKLogitsWarper(16)],
    ),
    "bad words": Option(
        Request(PROMPT, 2, sampling=WARM, bad_words=SOME_WORDS),
        [
            TemperatureLogitsWarper(1.3),
            banned(SOME_WORDS),
            TopKLogitsWarper(16),
        ],
    ),
    "repetition penalty": Option(
        Request(PROMPT, 2, sampling=replace(WARM, repetition_penalty=0.2)),
        [TemperatureLogitsWarper(1.3), RepetitionPenaltyLogitsProcessor(0.2), TopKLogitsWarper(16)],
    ),
    "presence penalty": Option(
        Request(OFTEN, 2, sampling=replace(WARM, presence_penalty=-3.5)),
        [TemperatureLogitsWarper(1.3), CountedPenalties(-3.5, 0), TopKLogitsWarper(16)],
    ),
    "frequency penalty": Option(
        Request(OFTEN, 2, sampling=replace(WARM, frequency_penalty=-1.5)),
        [TemperatureLogitsWarper(1.3), CountedPenalties(0, -1.5), TopKLogitsWarper(16)],
    ),
    "both penalties": Option(
        Request(OFTEN, 2, sampling=replace(WARM, presence_penalty=-6.0, frequency_penalty=1.0)),
        [TemperatureLogitsWarper(1.3), CountedPenalties(-6.0, 1.0), TopKLogitsWarper(16)],
    ),
}

# "both penalties" has them.
IN_BOTH = ("presence penalty", "frequency penalty")


@pytest.mark.parametrize("drafted", [0, 2])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.sweep if name in IN_BOTH else ()) for name in SAMPLED],
)
def test_samples_have_the_exact_distribution(
    torch_subject: Torch, answers: Answers, name: str, drafted: int
) -> None:
    """Of the first token, and of the second behind the likeliest first, at K = 0 and K = 2.

    Pearson's chi-square at the level 1e-3, over fixed seeds. Top-k leaves 16 tokens, so at most 15 degrees of
    freedom, where a noncentrality of 55.2 is found with probability 0.99; that of a distribution at the total
    variation distance d is at least 4 n d². With n = 1500 a wrong first token is found from d = 0.096 on, and
    a wrong second one, with n >= 250, from d = 0.235 on. A sampler that left the option out is further away.
    """
    option = SAMPLED[name]
    prompt = list(option.request.input_token_ids)
    first = probabilities(torch_subject, prompt, option.processors)
    likeliest = int(first.argmax())
    second = probabilities(torch_subject, [*prompt, likeliest], option.processors)
    without = [
        probabilities(torch_subject, text, [TemperatureLogitsWarper(1.3), TopKLogitsWarper(16)])
        for text in (prompt, [*prompt, likeliest])
    ]
    assert distance(first, without[0]) > 0.096 or distance(second, without[1]) > 0.235

    draft = [likeliest, int(second.argmax())][:drafted]
    request = replace(option.request, max_tokens=max(2, drafted), draft_token_ids=draft)
    seeded = [replace(request, sampling=replace(request.sampling, seed=seed)) for seed in range(N)]
    texts = [said.token_ids for said in answers(torch_subject.load(max_batch_size=256), *seeded)]
    behind = [text[1] for text in texts if text[0] == likeliest]
    assert len(behind) >= 250
    assert p_value([text[0] for text in texts], first) > 1e-3
    assert p_value(behind, second) > 1e-3


def probabilities(subject: Torch, text: list[int], processors: Sequence[Any]) -> torch.Tensor:
    return logits_after(subject, text, processors).softmax(-1).double()


def distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """The total variation distance."""
    return float((one - other).abs().sum() / 2)
