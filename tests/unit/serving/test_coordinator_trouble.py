"""What the coordinator does when an engine fails, answers nonsense or is told to stop."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest
import tokenizers

from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import DRAFT, TARGET, OneShot, Run, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, echo
from trtspec.serving.completion import CompletionRequest, EndReason
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import EngineFailure, ProtocolError
from trtspec.serving.executor import FinishReason, Request
from trtspec.serving.tokenizer import Tokenizer


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
