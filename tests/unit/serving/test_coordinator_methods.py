"""Every source of drafts, with either policy: what is said is what the target alone says."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import tokenizers

from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import TARGET, Run, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor
from tests.fakes.suffix import SUFFIX
from trtspec.serving.adaptive.policy import AdaptiveLengths, Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.tokenizer import Tokenizer

LOOKUP = {"prompt_lookup_min": 1, "prompt_lookup_max": 4}
METHODS = (None, Drafting("ngram", LOOKUP), Drafting("hybrid", LOOKUP), SUFFIX)


@pytest.mark.parametrize("method", METHODS, ids=["draft_model", "ngram", "hybrid", "suffix"])
@pytest.mark.parametrize(
    ("agreement", "policy"),
    [
        (0.9, "fixed"),
        (0.0, "adaptive"),
        pytest.param(0.0, "fixed", marks=pytest.mark.sweep),
        pytest.param(0.9, "adaptive", marks=pytest.mark.sweep),
    ],
)
def test_many_at_once_say_what_the_target_alone_says(
    run: Run,
    tokenizer: Tokenizer,
    byte_level: tokenizers.Tokenizer,
    cases: Cases,
    method: Drafting | None,
    policy: Policy,
    agreement: float,
) -> None:
    """With a draft that fails now and then; requests that name a K among others."""
    requests, languages = cases
    dice = random.Random(5)
    if policy == "adaptive":
        requests = [
            replace(request, num_draft_tokens=None) if index % 4 else request
            for index, request in enumerate(requests)
        ]

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(languages))
        fails = lambda _: "draft is down" if dice.random() < 0.05 else None  # noqa: E731
        draft = None if method in (METHODS[1], SUFFIX) else drafting_for(target, agreement, fails=fails)
        coordinator = assemble(target, draft, tokenizer, drafting=method, policy=policy)
        deltas = await asyncio.gather(*(coordinator.complete(request) for request in requests))
        for request, delta in zip(requests, deltas, strict=True):
            assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
        assert sum(each.num_spec_steps for each in coordinator.stats.by_origin.values()) > 50
        assert (target.in_flight, coordinator.stats.running) == (0, 0)

    run(main())


def test_a_text_that_repeats_itself_is_drafted_from_itself(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, lambda sequence: 60 + len(sequence) % 7)
        coordinator = assemble(target, None, tokenizer, drafting=Drafting("ngram", LOOKUP))
        request = CompletionRequest(prompt_token_ids=[1], max_tokens=200, num_draft_tokens=8, end_id=NO_END)
        delta = await coordinator.complete(request)
        assert delta.token_ids == [60 + (1 + index) % 7 for index in range(200)]
        assert delta.completion is not None
        speculation = delta.completion.speculation
        assert speculation.draft_acceptance_rate == 1
        assert speculation.mean_acceptance_length > 8

    run(main())


def test_a_draft_that_is_not_worth_it_keeps_no_text_from_being_quoted(
    run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target alone goes on in steps that are short at first, since the text may repeat itself soon."""

    def choose(chooser: AdaptiveLengths, origin: str, longest: int, load: int, now: float) -> int:
        return 0 if origin == "engine" else longest

    monkeypatch.setattr(AdaptiveLengths, "choose", choose)

    async def main() -> None:
        target = ScriptedExecutor(TARGET, lambda sequence: 60 + len(sequence) % 12)
        method = Drafting("hybrid", {"prompt_lookup_min": 4, "prompt_lookup_max": 8})
        coordinator = assemble(
            target, drafting_for(target, 1.0), tokenizer, drafting=method, policy="adaptive"
        )
        request = CompletionRequest(prompt_token_ids=[1], max_tokens=120, end_id=NO_END)
        delta = await coordinator.complete(request)
        assert delta.token_ids == [60 + (1 + index) % 12 for index in range(120)]
        drafted = next(request for request in target.requests if request.draft_token_ids)
        assert len(drafted.input_token_ids) < 24
        assert coordinator.stats.by_origin["engine"].num_spec_steps == 0

    run(main())
