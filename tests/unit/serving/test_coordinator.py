"""The coordinator over scripted engines; the judge is the target's own text, cut in the simplest way."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, replace

import pytest
import tokenizers

from tests.fakes.languages import DRAFT, TARGET, OneShot, Run, by_prompt, chatter, drafting_for
from tests.fakes.scripted_executor import NextToken, ScriptedExecutor, agreeing, echo
from trtspec.serving.completion import NO_END, CompletionRequest, Delta, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineFailure, ProtocolError, RequestError
from trtspec.serving.executor import FinishReason, Limits, Request, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

STOPS = ["ab", "aa", "hello", "é", "b🙂", "o\n", "lo", "zzz"]


@dataclass
class Expected:
    """What the target alone would say, cut by looking at the whole."""

    text: str
    token_ids: list[int]
    end_reason: EndReason


def expect(
    request: CompletionRequest, language: NextToken, tokenizer: Tokenizer, decode: Callable[..., str]
) -> Expected:
    end_ids = tokenizer.end_ids if request.end_id is None else (request.end_id,)
    sequence, said = list(request.prompt_token_ids or ()), []
    reason = EndReason.LENGTH
    while len(said) < request.max_tokens:
        token_id = language(sequence + said)
        if token_id in end_ids:
            reason = EndReason.END_ID
            break
        said.append(token_id)
    for length in range(1, len(said) + 1):
        text = decode(said[:length])
        ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in request.stop if stop in text]
        if ends:
            return Expected(text[: min(ends)[1]], said[:length], EndReason.STOP)
    return Expected(decode(said), said, reason)


def assert_is(delta: Delta, expected: Expected) -> None:
    assert delta.completion is not None
    assert (delta.text, delta.token_ids, delta.completion.end_reason) == (
        expected.text,
        expected.token_ids,
        expected.end_reason,
    )
    assert delta.completion.num_output_tokens == len(expected.token_ids)


@pytest.fixture
def cases(byte_level: tokenizers.Tokenizer) -> tuple[list[CompletionRequest], dict[int, NextToken]]:
    """Requests over random languages with characters that are torn apart, stop strings and end tokens."""
    dice = random.Random(7)
    torn = [token_id for char in "é🙂漢" for token_id in byte_level.encode(char).ids]
    words = [
        *byte_level.encode("ab\nlo").ids,
        *(byte_level.token_to_id(word) for word in ("hello", "he", "ll")),
    ]
    special = [byte_level.token_to_id(token) for token in ("<|end|>", "<|turn|>", "<call me>")]
    requests, languages = [], {}
    for first in range(200):
        vocabulary = dice.choices(torn, k=dice.randrange(4)) + dice.choices(words, k=dice.randrange(2, 30))
        if dice.random() < 0.6:
            vocabulary.append(dice.choice(special))
        languages[first] = chatter(vocabulary, first)
        requests.append(
            CompletionRequest(
                prompt_token_ids=[first, *dice.choices(range(256), k=dice.randrange(20))],
                max_tokens=dice.randrange(1, 80),
                num_draft_tokens=dice.choice([None, 0, *range(1, 9)]),
                stop=tuple(dice.sample(STOPS, dice.randrange(3))),
            )
        )
    return requests, languages


Cases = tuple[list[CompletionRequest], dict[int, NextToken]]


@pytest.mark.parametrize("agreement", [0.0, 0.5, 0.9, 1.0])
def test_many_at_once_say_what_the_target_alone_says(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, cases: Cases, agreement: float
) -> None:
    requests, languages = cases

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(languages))
        draft = drafting_for(target, agreement)
        coordinator = Coordinator(target, draft, tokenizer)
        deltas = await asyncio.gather(*(coordinator.complete(request) for request in requests))
        for request, delta in zip(requests, deltas, strict=True):
            assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
        assert {delta.completion.end_reason for delta in deltas} == set(EndReason) - {EndReason.CANCELLED}

        total = coordinator.stats.speculation
        each = [delta.completion.speculation for delta in deltas]
        assert total.num_spec_steps == sum(counts.num_spec_steps for counts in each) > 100
        assert total.num_draft_tokens == sum(counts.num_draft_tokens for counts in each)
        assert total.num_accepted_draft_tokens == sum(total.accepted_per_position)
        if agreement == 1:
            # All but what followed a stop string or an end token that the engines do not know.
            assert total.draft_acceptance_rate > 0.9
        assert (target.in_flight, draft.in_flight, coordinator.stats.active_requests) == (0, 0, 0)

    run(main())


def test_what_streams_is_never_taken_back(
    run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer
) -> None:
    text = "hello 🙂 wörld, 漢字 and a stop that is no stop: sto. " * 3
    ids = byte_level.encode(text).ids

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(ids, tokenizer.end_ids[0]))
        coordinator = Coordinator(target, drafting_for(target, 0.7), tokenizer)
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
        delta = await Coordinator(target, draft, tokenizer).complete(
            CompletionRequest(prompt_token_ids=[1], max_tokens=100, num_draft_tokens=4)
        )
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
            coordinator = Coordinator(target, drafting_for(target, 1.0), tokenizer)
            request = CompletionRequest(
                prompt_token_ids=[1], max_tokens=50, num_draft_tokens=num_draft_tokens
            )
            delta = await coordinator.complete(request)
            assert (delta.token_ids, delta.completion.end_reason) == ([5, 6, 7], EndReason.END_ID)
            assert target.in_flight == 0

    run(main())


def test_without_a_draft_one_request_does_all(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        for coordinator_has_draft, options in [
            (False, {}),
            (True, {"num_draft_tokens": 0}),
            (True, {"sampling": SamplingConfig(frequency_penalty=0.3)}),
            (True, {"sampling": SamplingConfig(min_tokens=4)}),
            (True, {"max_tokens": 1}),
        ]:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0)
            coordinator = Coordinator(target, draft if coordinator_has_draft else None, tokenizer)
            request = replace(CompletionRequest(prompt_token_ids=[1], max_tokens=20), **options)
            delta = await coordinator.complete(request)
            assert delta.token_ids == list(range(50, 50 + request.max_tokens))
            assert [(r.max_tokens, r.streaming) for r in target.requests] == [(request.max_tokens, True)]
            assert draft.requests == []

    run(main())


def test_a_stop_string_cancels_the_target_decoding_alone(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(tokenizer.encode("one two three four five six"), 5))
        request = CompletionRequest(prompt_token_ids=[1], max_tokens=50, stop=("three",))
        delta = await Coordinator(target, None, tokenizer).complete(request)
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
                coordinator = Coordinator(target, draft, tokenizer)
                request = CompletionRequest(prompt_token_ids=[1] * 10, max_tokens=1000, end_id=NO_END)
                delta = await coordinator.complete(request)
                assert delta.completion.end_reason is EndReason.LENGTH
                assert delta.completion.num_output_tokens == 100 - 8 - 10
                assert coordinator.stats.draft_failures == 0
                assert target.requests[-1].streaming
                assert len(target.requests) > 2

            run(main())


class TestDraft:
    def test_fails_at_random(
        self, run: Run, tokenizer: Tokenizer, byte_level: tokenizers.Tokenizer, cases: Cases
    ) -> None:
        requests, languages = cases
        dice = random.Random(3)

        async def main() -> None:
            target = ScriptedExecutor(TARGET, by_prompt(languages))
            draft = drafting_for(
                target, 0.8, fails=lambda _: "draft is down" if dice.random() < 0.2 else None
            )
            coordinator = Coordinator(target, draft, tokenizer)
            deltas = await asyncio.gather(*(coordinator.complete(request) for request in requests))
            for request, delta in zip(requests, deltas, strict=True):
                assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
            assert coordinator.stats.draft_failures > 20

        run(main())

    def test_is_not_asked_again_after_a_failure(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0, fails=lambda r: "gone" if len(r.input_token_ids) > 10 else None)
            coordinator = Coordinator(target, draft, tokenizer)
            delta = await coordinator.complete(
                CompletionRequest(prompt_token_ids=[1], max_tokens=40, num_draft_tokens=4)
            )
            assert delta.token_ids == list(range(50, 90))
            assert coordinator.stats.draft_failures == 1
            assert [len(r.input_token_ids) for r in draft.requests] == [1, 6, 11]
            assert [len(r.input_token_ids) for r in target.requests] == [1, 6, 11]
            assert target.requests[-1].streaming

        run(main())

    def test_stops_while_a_request_is_in_flight(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0, delay=60)
            coordinator = Coordinator(target, draft, tokenizer)
            task = asyncio.ensure_future(
                coordinator.complete(CompletionRequest(prompt_token_ids=[1], max_tokens=40))
            )
            while not draft.in_flight:
                await asyncio.sleep(0)
            draft.shutdown()
            assert (await task).token_ids == list(range(50, 90))
            assert coordinator.stats.draft_failures == 1

        run(main())

    @pytest.mark.parametrize("garbage", ["beyond the vocabulary", "nothing", "too many", "negative"])
    def test_answers_garbage(self, run: Run, tokenizer: Tokenizer, garbage: str) -> None:
        class Draft(OneShot):
            def say(self, request: Request) -> tuple[list[int], FinishReason]:
                right = [50 + len(request.input_token_ids) - 1 + i for i in range(20)]
                said = {
                    "beyond the vocabulary": [*right[:1], 300, *right[2:4]],
                    "nothing": [],
                    "too many": right,
                    "negative": [-1],
                }[garbage]
                return said, FinishReason.LENGTH

        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            coordinator = Coordinator(target, Draft(DRAFT), tokenizer)
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=30, num_draft_tokens=4)
            delta = await coordinator.complete(request)
            assert delta.token_ids == list(range(50, 80))
            assert all(len(r.draft_token_ids) <= 4 for r in target.requests)
            expected = {"beyond the vocabulary": 1.0, "too many": 1.0, "nothing": 0.0, "negative": 0.0}
            assert delta.completion.speculation.draft_acceptance_rate == expected[garbage]

        run(main())


class TestTarget:
    def test_fails(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            for num_draft_tokens in (0, 4):
                target = ScriptedExecutor(
                    TARGET,
                    echo(range(50, 90), 5),
                    fails=lambda r: (
                        "out of memory" if len(r.input_token_ids) == 11 or not r.draft_token_ids else None
                    ),
                )
                coordinator = Coordinator(target, drafting_for(target, 1.0), tokenizer)
                request = CompletionRequest(
                    prompt_token_ids=[1], max_tokens=40, num_draft_tokens=num_draft_tokens
                )
                said: list[int] = []

                async def listen(
                    request: CompletionRequest = request,
                    said: list[int] = said,
                    coordinator: Coordinator = coordinator,
                ) -> None:
                    async for delta in coordinator.stream(request):
                        said += delta.token_ids

                with pytest.raises(EngineFailure, match=r"^out of memory$"):
                    await listen()
                assert said == list(range(50, 60)) if num_draft_tokens else said == []
                assert coordinator.stats.active_requests == 0
                assert coordinator.stats.draft_failures == 0

        run(main())

    def test_answers_what_does_not_follow_from_the_draft(self, run: Run, tokenizer: Tokenizer) -> None:
        class Target(OneShot):
            def say(self, request: Request) -> tuple[list[int], FinishReason]:
                return [7, 7, 7], FinishReason.LENGTH

        async def main() -> None:
            draft = ScriptedExecutor(DRAFT, echo(range(50, 90), 5))
            with pytest.raises(ProtocolError):
                await Coordinator(Target(TARGET), draft, tokenizer).complete(
                    CompletionRequest(prompt_token_ids=[1])
                )

        run(main())

    @pytest.mark.parametrize("num_draft_tokens", [0, 4])
    def test_is_shut_down(self, run: Run, tokenizer: Tokenizer, num_draft_tokens: int) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            coordinator = Coordinator(target, drafting_for(target, 1.0), tokenizer)
            request = CompletionRequest(
                prompt_token_ids=[1], max_tokens=40, num_draft_tokens=num_draft_tokens
            )
            said: list[int] = []
            async for delta in coordinator.stream(request):
                said += delta.token_ids
                if len(said) >= 5 and target.cancelled == []:
                    asyncio.get_running_loop().call_soon(shut_down_when_busy, target)
            assert delta.completion.end_reason is EndReason.CANCELLED
            assert said == list(range(50, 50 + len(said)))
            assert 5 <= len(said) < 40

        run(main())


def shut_down_when_busy(executor: ScriptedExecutor) -> None:
    if executor.in_flight:
        executor.shutdown()
    else:
        asyncio.get_running_loop().call_soon(shut_down_when_busy, executor)


class TestCancellation:
    @pytest.mark.parametrize("how", ["cancel the task", "close the stream"])
    def test_at_any_moment_leaves_nothing_behind(
        self, run: Run, tokenizer: Tokenizer, cases: Cases, how: str
    ) -> None:
        requests, languages = cases
        dice = random.Random(11)

        async def main() -> None:
            target = ScriptedExecutor(TARGET, by_prompt(languages))
            draft = drafting_for(target, 0.7)
            coordinator = Coordinator(target, draft, tokenizer)

            async def consume(request: CompletionRequest, rounds: int) -> None:
                async with aclosing(coordinator.stream(request)) as stream:
                    async for _ in stream:
                        rounds -= 1
                        if rounds == 0:
                            return

            if how == "close the stream":
                await asyncio.gather(*(consume(request, dice.randrange(1, 6)) for request in requests))
            else:
                tasks = [asyncio.ensure_future(consume(request, -1)) for request in requests]
                for tick in range(30):
                    await asyncio.sleep(0)
                    for task in tasks[tick::30]:
                        task.cancel()
                ends = await asyncio.gather(*tasks, return_exceptions=True)
                assert sum(isinstance(end, asyncio.CancelledError) for end in ends) > 50
            assert (target.in_flight, draft.in_flight, coordinator.stats.active_requests) == (0, 0, 0)
            assert len(target.cancelled) + len(draft.cancelled) > 5

        run(main())

    def test_does_not_wait_for_the_engine(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            for slow_draft, slow_target in ((60, 0), (0, 60)):
                target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), delay=slow_target)
                draft = drafting_for(target, 1.0, delay=slow_draft)
                slow = draft if slow_draft else target
                coordinator = Coordinator(target, draft, tokenizer)
                task = asyncio.ensure_future(coordinator.complete(CompletionRequest(prompt_token_ids=[1])))
                while not slow.in_flight:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (slow.in_flight, slow.cancelled) == (0, [1])

        run(main())


def test_a_refused_request_starts_nothing(tokenizer: Tokenizer) -> None:
    target = ScriptedExecutor(TARGET, echo([5], 6))
    coordinator = Coordinator(target, None, tokenizer)
    with pytest.raises(RequestError):
        coordinator.stream(CompletionRequest("", max_tokens=3))
    assert (target.requests, coordinator.stats.active_requests) == ([], 0)


def test_a_request_that_names_no_draft_length_gets_the_coordinators(run: Run, tokenizer: Tokenizer) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, chatter(range(60, 90), 3))
        coordinator = Coordinator(target, drafting_for(target, 1.0), tokenizer, num_draft_tokens=3)
        silent = CompletionRequest(prompt_token_ids=[1], max_tokens=40, end_id=NO_END)
        longest = []
        for request in (silent, replace(silent, num_draft_tokens=2)):
            target.requests.clear()
            await coordinator.complete(request)
            longest.append(max(len(sent.draft_token_ids) for sent in target.requests))
        assert longest == [3, 2]

    run(main())
