"""Log-probabilities through the coordinator: as many as tokens in every delta, each of its own token."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
import tokenizers

from tests.fakes.expected import Cases, expect
from tests.fakes.languages import TARGET, Run, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, scripted_log_prob
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, Delta
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import RequestError
from trtspec.serving.executor import LogProb, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer


def expected(request: CompletionRequest, tokens: list[int]) -> list[LogProb]:
    prompt = list(request.prompt_token_ids or ())
    befores = [prompt + tokens[:place] for place in range(len(tokens))]
    return [
        LogProb(
            scripted_log_prob(before, token),
            tuple((other, scripted_log_prob(before, other)) for other in range(request.top_log_probs)),
        )
        for before, token in zip(befores, tokens, strict=True)
    ]


@pytest.mark.parametrize("agreement", [0.5, 1.0])
def test_every_delta_has_those_of_its_tokens(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, cases: Cases, agreement: float
) -> None:
    """Requests with stop strings inside rounds, torn characters, end tokens and every K from 0 to 8."""
    requests = [
        replace(request, return_log_probs=True, top_log_probs=number % 3)
        for number, request in enumerate(cases[0])
    ]

    async def deltas_of(coordinator: Coordinator, request: CompletionRequest) -> list[Delta]:
        return [delta async for delta in coordinator.stream(request)]

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(cases[1]))
        draft = drafting_for(target, agreement)
        coordinator = assemble(target, draft, tokenizer)
        heard = await asyncio.gather(*(deltas_of(coordinator, request) for request in requests))
        for request, deltas in zip(requests, heard, strict=True):
            said = [token for delta in deltas for token in delta.token_ids]
            assert said == expect(request, by_prompt(cases[1]), tokenizer, byte_level.decode).token_ids
            assert [len(delta.log_probs or ()) for delta in deltas] == [len(d.token_ids) for d in deltas]
            assert [value for delta in deltas for value in delta.log_probs or ()] == expected(request, said)
        assert not any(request.return_log_probs or request.top_log_probs for request in draft.requests)

    run(main())


def test_a_whole_answer_has_all_and_one_without_the_wish_none(run: Run, tokenizer: Tokenizer) -> None:
    request = CompletionRequest(prompt_token_ids=[1], max_tokens=40, end_id=-1, return_log_probs=True)

    async def main() -> None:
        target = ScriptedExecutor(TARGET, lambda sequence: 60 + len(sequence) % 30)
        coordinator = assemble(target, drafting_for(target, 0.7), tokenizer)
        held = replace(request, sampling=SamplingConfig(min_tokens=9), end_id=75)
        for wanted in (request, held):
            delta = await coordinator.complete(wanted)
            assert delta.log_probs == expected(wanted, delta.token_ids) != []
        assert (await coordinator.complete(replace(request, return_log_probs=False))).log_probs is None

    run(main())


def test_an_engine_that_cannot_say_them_refuses(run: Run, tokenizer: Tokenizer) -> None:
    target = ScriptedExecutor(replace(TARGET, returns_log_probs=False), lambda sequence: 60)
    request = CompletionRequest(prompt_token_ids=[1], return_log_probs=True)

    async def main() -> None:
        with pytest.raises(
            RequestError, match="return_log_probs is true; allowed: false or left out"
        ) as caught:
            await assemble(target, None, tokenizer).complete(request)
        assert caught.value.field == "return_log_probs"
        assert target.requests == []

    run(main())


@pytest.mark.parametrize(
    ("most", "wish", "allowed"),
    [
        (20, {"top_log_probs": 21, "return_log_probs": True}, "0 to 20"),
        (20, {"top_log_probs": -1, "return_log_probs": True}, "0 to 20"),
        (20, {"top_log_probs": 2}, "0 or left out without return_log_probs"),
        (0, {"top_log_probs": 1, "return_log_probs": True}, "the target engine reports no others"),
    ],
)
def test_more_others_than_the_engine_says_are_refused(
    run: Run, tokenizer: Tokenizer, most: int, wish: dict[str, Any], allowed: str
) -> None:
    target = ScriptedExecutor(replace(TARGET, max_top_log_probs=most), lambda sequence: 60)
    request = CompletionRequest(prompt_token_ids=[1], **wish)

    async def main() -> None:
        with pytest.raises(RequestError, match=allowed) as caught:
            await assemble(target, None, tokenizer).complete(request)
        assert caught.value.field == "top_log_probs"
        assert target.requests == []

    run(main())
