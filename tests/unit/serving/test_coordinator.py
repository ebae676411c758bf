"""The coordinator over scripted engines; the judge is the target's own text, cut in the simplest way."""

from __future__ import annotations

import asyncio
import random
import threading
from dataclasses import replace
from typing import Any

import pytest
import tokenizers

from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import DRAFT, TARGET, OneShot, Run, by_prompt, chatter, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, agreeing, echo, scripted_log_prob
from tests.fakes.suffix import SUFFIX
from tests.support.draft_failures import draft_failures
from trtspec.serving.adaptive.policy import AdaptiveLengths, Policy
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import NO_END, CompletionRequest, Delta, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.drafters.source import Drafting
from trtspec.serving.errors import EngineFailure, RequestError
from trtspec.serving.executor import FinishReason, Limits, LogProb, Request, SamplingConfig
from trtspec.serving.intake import LONG
from trtspec.serving.stats import NO_PROPOSAL, why_undrafted
from trtspec.serving.tokenizer import Tokenizer
from trtspec.serving.triton.requests import ResponseOptions
from trtspec.serving.triton.responses import TextChunk, arrays


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
def test_many_at_once_say_what_the_target_alone_says(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, cases: Cases, agreement: float
) -> None:
    requests, languages = cases

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(languages))
        draft = drafting_for(target, agreement)
        coordinator = assemble(target, draft, tokenizer)
        deltas = await asyncio.gather(*(coordinator.complete(request) for request in requests))
        for request, delta in zip(requests, deltas, strict=True):
            assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
        completions = [delta.completion for delta in deltas if delta.completion is not None]
        assert {completion.end_reason for completion in completions} == set(EndReason)

        total = coordinator.stats.by_origin["engine"]
        each = [completion.speculation for completion in completions]
        assert total.num_spec_steps == sum(counts.num_spec_steps for counts in each) > 100
        assert total.num_draft_tokens == sum(counts.num_draft_tokens for counts in each)
        assert total.num_accepted_draft_tokens == sum(total.accepted_per_position)
        if agreement == 1:
            # All but what followed a stop string or an end token that the engines do not know.
            assert total.draft_acceptance_rate > 0.9
        assert (target.in_flight, draft.in_flight, coordinator.stats.running) == (0, 0, 0)

    run(main())


def test_a_stream_never_takes_text_back(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer
) -> None:
    text = "hello 🙂 wörld, 漢字 and a stop that is no stop: sto. " * 3
    ids = byte_level.encode(text).ids

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(ids, tokenizer.end_ids[0]))
        coordinator = assemble(target, drafting_for(target, 0.7), tokenizer)
        request = CompletionRequest(prompt_token_ids=[1], max_tokens=300, stop=("stopp", "漢漢"))
        shown, token_ids, rounds = "", [], 0
        async for delta in coordinator.stream(request):
            shown += delta.text
            token_ids += delta.token_ids
            rounds += 1
            assert text.startswith(shown)
            assert (delta.completion is None) == (len(token_ids) < len(ids) or shown != text)
        assert (shown, token_ids) == (text, ids)
        assert rounds > 10

    run(main())


@pytest.mark.parametrize("length", range(1, 15))
@pytest.mark.parametrize("agreement", [0.0, 0.6, 1.0])
def test_the_end_token_ends_without_another_round(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, length: int, agreement: float
) -> None:
    ids = byte_level.encode("abcdefghijklmnop").ids[:length]

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(ids, tokenizer.end_ids[0]))
        draft = drafting_for(target, agreement)
        delta = await assemble(target, draft, tokenizer).complete(
            CompletionRequest(prompt_token_ids=[1], max_tokens=100, num_draft_tokens=4)
        )
        assert delta.completion is not None
        assert (delta.token_ids, delta.completion.end_reason) == (ids, EndReason.END_ID)
        # The last verification is the one that met the end: nothing was asked about the whole text but that.
        about_the_whole = [r for r in target.requests if len(r.input_token_ids) == 1 + length]
        assert len(about_the_whole) <= 1
        if about_the_whole:
            assert target.requests[-1] is about_the_whole[0]
        assert len(draft.requests) == len(target.requests)

    run(main())


def test_an_end_token_that_the_engines_do_not_know(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        language = echo([5, 6, 7, tokenizer.end_ids[1], 8, 9], tokenizer.end_ids[0])
        for num_draft_tokens in (0, 2, 8):
            target = ScriptedExecutor(TARGET, language)
            coordinator = assemble(target, drafting_for(target, 1.0), tokenizer)
            request = CompletionRequest(
                prompt_token_ids=[1], max_tokens=50, num_draft_tokens=num_draft_tokens
            )
            delta = await coordinator.complete(request)
            assert delta.completion is not None
            assert (delta.token_ids, delta.completion.end_reason) == ([5, 6, 7], EndReason.END_ID)
            assert target.in_flight == 0

    run(main())


def test_without_a_draft_one_request_does_all(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        plain = CompletionRequest(prompt_token_ids=[1], max_tokens=20)
        for coordinator_has_draft, request in [
            (False, plain),
            (True, replace(plain, num_draft_tokens=0)),
            (True, replace(plain, sampling=SamplingConfig(frequency_penalty=0.3))),
            (True, replace(plain, max_tokens=1)),
        ]:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0)
            coordinator = assemble(target, draft if coordinator_has_draft else None, tokenizer)
            delta = await coordinator.complete(request)
            assert delta.token_ids == list(range(50, 50 + request.max_tokens))
            assert [(r.max_tokens, r.streaming) for r in target.requests] == [(request.max_tokens, True)]
            assert draft.requests == []

    run(main())


def test_a_stop_string_cancels_the_target_decoding_alone(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(tokenizer.encode("one two three four five six"), 5))
        request = CompletionRequest(prompt_token_ids=[1], max_tokens=50, stop=("three",))
        delta = await assemble(target, None, tokenizer).complete(request)
        assert delta.completion is not None
        assert (delta.text, delta.completion.end_reason) == ("one two ", EndReason.STOP)
        assert (target.cancelled, target.in_flight) == ([1], 0)

    run(main())


def test_a_long_completion_outgrows_the_engines_inputs(run: Run, tokenizer: Tokenizer) -> None:
    """An engine takes `max_input_len` tokens of prompt, and each round's prompt is all that there is."""
    target_limits = replace(TARGET, max_input_len=30, max_seq_len=100)
    for draft_limits in (DRAFT, replace(DRAFT, max_input_len=20), replace(DRAFT, max_seq_len=25)):
        for agreement in (0.0, 0.8, 1.0):

            async def main(draft_limits: Limits = draft_limits, agreement: float = agreement) -> None:
                language = chatter(range(60, 90), 3)
                target = ScriptedExecutor(target_limits, language)
                draft = ScriptedExecutor(draft_limits, agreeing(language, 300, agreement))
                coordinator = assemble(target, draft, tokenizer)
                request = CompletionRequest(prompt_token_ids=[1] * 10, max_tokens=1000, end_id=NO_END)
                delta = await coordinator.complete(request)
                assert delta.completion is not None
                assert delta.completion.end_reason is EndReason.LENGTH
                assert delta.completion.num_output_tokens == 100 - 8 - 10
                assert draft_failures(coordinator.stats) == 0
                assert target.requests[-1].streaming
                assert len(target.requests) > 2

            run(main())


def test_a_refused_request_starts_nothing(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo([5], 6))
        coordinator = assemble(target, None, tokenizer)
        with pytest.raises(RequestError):
            await anext(coordinator.stream(CompletionRequest("", max_tokens=3)))
        assert (target.requests, coordinator.stats.running) == ([], 0)

    run(main())


def test_a_long_prompt_holds_nobody_up(run: Run, byte_level: tokenizers.Tokenizer) -> None:
    class SlowTokenizer(Tokenizer):
        """Takes as long as another completion."""

        def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
            assert len(text) < LONG or other_is_done.wait(120)
            return [1, 2, 3]

    other_is_done = threading.Event()

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo([5], 6))
        slow = SlowTokenizer(byte_level)
        slow.longest_token = 5000
        coordinator = assemble(target, drafting_for(target, 0.7), slow)
        prompts = "x" * 5000, "short"
        long, short = (
            asyncio.create_task(coordinator.complete(CompletionRequest(prompt, max_tokens=3)))
            for prompt in prompts
        )
        await short
        other_is_done.set()
        assert (await long).token_ids == (await short).token_ids

    run(main())


def test_a_request_that_names_no_draft_length_gets_the_coordinators(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, chatter(range(60, 90), 3))
        coordinator = assemble(target, drafting_for(target, 1.0), tokenizer, num_draft_tokens=3)
        silent = CompletionRequest(prompt_token_ids=[1], max_tokens=40, end_id=NO_END)
        longest = []
        for request in (silent, replace(silent, num_draft_tokens=2)):
            target.requests.clear()
            await coordinator.complete(request)
            longest.append(max(len(sent.draft_token_ids) for sent in target.requests))
        assert longest == [3, 2]

    run(main())


@pytest.mark.parametrize("num_draft_tokens", [0, 2, 8])
def test_stop_tokens_end_a_text_that_includes_them_if_asked(
    run: Run, byte_level: tokenizers.Tokenizer, num_draft_tokens: int
) -> None:
    tokenizer = Tokenizer(byte_level)
    a, b, stop, other = byte_level.encode("ab!c").ids
    engines_own = CompletionRequest(
        prompt_token_ids=[1], max_tokens=50, num_draft_tokens=num_draft_tokens, stop_token_ids=(stop,)
    )

    async def text(request: CompletionRequest) -> tuple[str, EndReason]:
        target = ScriptedExecutor(TARGET, echo([a, b, stop, other, other], request.stop_token_ids[0]))
        delta = await assemble(target, drafting_for(target, 1.0), tokenizer).complete(request)
        assert delta.completion is not None
        return delta.text, delta.completion.end_reason

    async def main() -> None:
        for request in (engines_own, replace(engines_own, stop_token_ids=(other, stop))):
            assert await text(request) == ("ab", EndReason.END_ID)
            assert await text(replace(request, include_stop=True)) == ("ab!", EndReason.END_ID)

    run(main())


@pytest.mark.parametrize("num_draft_tokens", [0, 4])
@pytest.mark.parametrize("penalty", [None, 0.5])
def test_none_of_the_end_tokens_comes_before_min_tokens(
    run: Run, tokenizer: Tokenizer, num_draft_tokens: int, penalty: float | None
) -> None:
    """Engines know of one end token; of the others they are told as of tokens that must not come."""

    class Model(OneShot):
        """Would say either end token at once, and says 60 where it may not."""

        def say(self, request: Request) -> tuple[list[int], FinishReason]:
            said = len(request.input_token_ids) - 1
            first: list[int] = []
            for position in range(said, said + request.max_tokens):
                wish = tokenizer.end_ids[position % 2]
                banned: set[int | None] = {word[-1] for word in request.bad_words}
                if position - said < (request.sampling.min_tokens or 0):
                    banned.add(request.end_id)
                token = 60 if wish in banned else wish
                if token == request.end_id:
                    return first, FinishReason.END_ID
                first.append(token)
            return first, FinishReason.LENGTH

    async def main() -> None:
        sampling = SamplingConfig(min_tokens=7, presence_penalty=penalty)
        request = CompletionRequest(
            prompt_token_ids=[1], max_tokens=20, num_draft_tokens=num_draft_tokens, sampling=sampling
        )
        coordinator = assemble(Model(TARGET), Model(DRAFT), tokenizer)
        completion = (await coordinator.complete(request)).completion
        assert completion is not None
        assert (completion.num_output_tokens, completion.end_reason) == (7, EndReason.END_ID)

    run(main())


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


def test_an_engine_without_log_probabilities_is_never_asked_for_them(run: Run, tokenizer: Tokenizer) -> None:
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
def test_each_method_says_what_the_target_alone_says(
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


@pytest.mark.parametrize(
    ("length", "reason", "words"),
    [
        (None, "policy", "a step with drafts takes longer here just now"),
        (None, NO_PROPOSAL, "the draft engine proposed nothing; trtspec:fallbacks_total counts why"),
        (0, None, ""),
    ],
)
def test_an_answer_without_drafts_says_why_it_has_none(
    run: Run,
    tokenizer: Tokenizer,
    monkeypatch: pytest.MonkeyPatch,
    length: int | None,
    reason: str | None,
    words: str,
) -> None:
    """A request that asks for no drafts needs no reason."""
    if reason == "policy":
        monkeypatch.setattr(AdaptiveLengths, "choose", lambda *_: 0)

    def fail(_: Request) -> None:
        if reason == NO_PROPOSAL:
            raise EngineFailure("no memory")

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
        draft = drafting_for(target, 1.0, fails=fail)
        coordinator = assemble(target, draft, tokenizer, policy="adaptive")
        request = CompletionRequest(
            prompt_token_ids=[1], max_tokens=12, end_id=NO_END, num_draft_tokens=length
        )
        done = (await coordinator.complete(request)).completion
        assert done is not None
        assert done.undrafted_for == ((reason,) if reason else ())
        assert done.speculation.mean_acceptance_length == 1.0
        said = arrays(TextChunk("", done), ResponseOptions()).get("speculation")
        assert why_undrafted("" if said is None else said[0, 0].decode()) == words

    run(main())
