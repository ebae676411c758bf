"""What the coordinator does when an engine fails, answers nonsense or is told to stop."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing
from dataclasses import replace
from functools import partial

import pytest
import tokenizers

from tests.fakes.clock import Clock, until
from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import DRAFT, TARGET, OneShot, Run, by_prompt, chatter, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, echo
from tests.support.draft_failures import draft_failures
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest, EndReason
from trtspec.serving.coordinator import CHECK_S, MAX_FAILURES, Coordinator
from trtspec.serving.drafters.engine import FIRST_REST_S
from trtspec.serving.errors import Busy, Cancelled, EngineFailure
from trtspec.serving.executor import FinishReason, Limits, Listener, Request, Response, SamplingConfig
from trtspec.serving.tokenizer import Tokenizer

BOUNDS = ServingBounds(max_places=256)


class ByHand(OneShot):
    """A draft whose requests wait until the test answers them, the first or the last of them first."""

    raises: Exception | None = None

    def __init__(self, limits: Limits) -> None:
        super().__init__(limits)
        self.waiting: list[tuple[Request, Listener]] = []

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        if self.raises is not None:
            raise self.raises
        self.requests.append(request)
        self.waiting.append((request, listener))
        return len(self.requests)

    def answer(self, error: str | None = None, last: bool = False) -> None:
        request, listener = self.waiting.pop(-1 if last else 0)
        said = [] if error else [50 + len(request.input_token_ids) - 1]
        listener(Response(0, said, True, FinishReason.LENGTH, error))


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
            coordinator = assemble(target, draft, tokenizer)
            deltas = await asyncio.gather(*(coordinator.complete(request) for request in requests))
            for request, delta in zip(requests, deltas, strict=True):
                assert_is(delta, expect(request, by_prompt(languages), tokenizer, byte_level.decode))
            assert draft_failures(coordinator.stats) > 20

        run(main())

    def test_rests_after_three_failures_and_comes_back(
        self, run: Run, tokenizer: Tokenizer, clock: Clock
    ) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, chatter(range(60, 90), 3))
            is_down = False
            draft = drafting_for(target, 1.0, fails=lambda _: "gone" if is_down else None)
            coordinator = assemble(target, draft, tokenizer)
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=60, num_draft_tokens=4, end_id=-1)
            whole = (await coordinator.complete(request)).token_ids
            usual = len(draft.requests)

            is_down = True
            draft.requests.clear()
            assert (await coordinator.complete(request)).token_ids == whole
            assert (len(draft.requests), draft_failures(coordinator.stats)) == (3, 3)
            assert not coordinator.stats.draft_available
            assert (await coordinator.complete(request)).token_ids == whole
            assert len(draft.requests) == 3

            clock.seconds += FIRST_REST_S
            assert (await coordinator.complete(request)).token_ids == whole
            assert (len(draft.requests), draft_failures(coordinator.stats)) == (4, 4)

            is_down = False
            clock.seconds += 2 * FIRST_REST_S
            draft.requests.clear()
            assert (await coordinator.complete(request)).token_ids == whole
            assert coordinator.stats.draft_available
            assert len(draft.requests) == usual

        run(main())

    def test_comes_back_to_a_completion_that_lost_it(
        self, run: Run, tokenizer: Tokenizer, clock: Clock
    ) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, chatter(range(60, 90), 3))
            draft = drafting_for(target, 1.0, fails=lambda _: "gone" if clock.seconds < 1 else None)
            coordinator = assemble(target, draft, tokenizer)
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=150, num_draft_tokens=4, end_id=-1)
            said = 0
            async for delta in coordinator.stream(request):
                said += len(delta.token_ids)
                clock.seconds = said / 25
            # Three tokens with failures, a burst until the rest is over, and drafts again.
            assert said == 150
            assert delta.completion is not None
            assert delta.completion.speculation.num_spec_steps > 10

        run(main())

    def test_late_results_of_earlier_requests_do_not_count(
        self, run: Run, tokenizer: Tokenizer, clock: Clock
    ) -> None:
        async def main() -> None:
            target, draft = ScriptedExecutor(TARGET, echo(range(50, 90), 5)), ByHand(DRAFT)
            coordinator = assemble(target, draft, tokenizer, bounds=replace(BOUNDS, draft_timeout_s=1e9))
            stats, drafted = coordinator.stats, CompletionRequest(prompt_token_ids=[1], max_tokens=3)
            tasks = [asyncio.ensure_future(coordinator.complete(drafted)) for _ in range(12)]
            await until(lambda: len(draft.waiting) == 12)
            for _ in range(3):
                draft.answer(error="down")
            await until(lambda: draft_failures(stats) == 3)
            assert not stats.draft_available

            draft.answer()  # It began before the rest, so it does not end it.
            await until(lambda: stats.by_origin["engine"].num_spec_steps)
            assert not stats.draft_available

            clock.seconds += FIRST_REST_S
            tasks.append(asyncio.ensure_future(coordinator.complete(drafted)))
            await until(lambda: len(draft.waiting) == 9)  # Eight began before the rest; one is the attempt.
            for _ in range(4):
                draft.answer(error="down")
            await until(lambda: draft_failures(stats) == 7)
            clock.seconds += 2 * FIRST_REST_S
            delta = await coordinator.complete(drafted)
            assert delta.completion is not None
            assert delta.completion.speculation.num_spec_steps == 0
            assert len(draft.waiting) == 5

            draft.answer(last=True)
            await until(lambda: stats.draft_available)
            for _ in range(4):
                draft.answer(error="down")
            await until(lambda: draft_failures(stats) == 11)
            assert stats.draft_available
            ended = asyncio.gather(*tasks)
            while not ended.done():
                if draft.waiting:
                    draft.answer()
                await asyncio.sleep(0)
            for delta in ended.result():
                assert delta.token_ids == [50, 51, 52]

        run(main())

    @pytest.mark.parametrize("attempt", ["raises", "is cancelled"])
    def test_an_attempt_that_ends_in_any_way_allows_the_next(
        self, run: Run, tokenizer: Tokenizer, clock: Clock, attempt: str
    ) -> None:
        async def main() -> None:
            target, draft = ScriptedExecutor(TARGET, echo(range(50, 90), 5)), ByHand(DRAFT)
            coordinator = assemble(target, draft, tokenizer, bounds=replace(BOUNDS, draft_timeout_s=1e9))
            drafted = CompletionRequest(prompt_token_ids=[1], max_tokens=3)
            tasks = [asyncio.ensure_future(coordinator.complete(drafted)) for _ in range(3)]
            await until(lambda: len(draft.waiting) == 3)
            for _ in tasks:
                draft.answer(error="down")
            await asyncio.gather(*tasks)

            clock.seconds += FIRST_REST_S
            draft.raises = ZeroDivisionError("of the engine") if attempt == "raises" else None
            task = asyncio.ensure_future(coordinator.complete(drafted))
            if attempt == "raises":
                assert (await task).token_ids == [50, 51, 52]
                draft.raises = None
            else:
                await until(lambda: draft.waiting)
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                draft.waiting.clear()

            clock.seconds += 2 * FIRST_REST_S
            task = asyncio.ensure_future(coordinator.complete(drafted))
            await until(lambda: draft.waiting)
            draft.answer()
            await task
            assert coordinator.stats.draft_available

        run(main())

    def test_hangs_and_is_left_in_time(self, run: Run, tokenizer: Tokenizer, clock: Clock) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0, delay=3600)
            coordinator = assemble(target, draft, tokenizer, bounds=replace(BOUNDS, draft_timeout_s=5.0))
            task = asyncio.ensure_future(
                coordinator.complete(CompletionRequest(prompt_token_ids=[1], max_tokens=40))
            )

            def has_failed(times: int) -> bool:
                return draft_failures(coordinator.stats) == times

            for failures in range(1, 4):
                await until(lambda: draft.in_flight)
                clock.seconds += 5.0
                await until(partial(has_failed, failures))
            assert (await task).token_ids == list(range(50, 90))
            assert (draft.in_flight, draft.cancelled) == (0, [1, 2, 3])

        run(main())

    def test_stops_while_a_request_is_in_flight(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            draft = drafting_for(target, 1.0, delay=60)
            coordinator = assemble(target, draft, tokenizer)
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=40)
            task = asyncio.ensure_future(coordinator.complete(request))
            for _ in range(3):
                await until(lambda: draft.in_flight)
                draft.shutdown()
                await until(lambda: not draft.in_flight)
            assert (await task).token_ids == list(range(50, 90))
            assert draft_failures(coordinator.stats) == 3

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
            coordinator = assemble(target, Draft(DRAFT), tokenizer)
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=30, num_draft_tokens=4)
            delta = await coordinator.complete(request)
            assert delta.token_ids == list(range(50, 80))
            assert all(len(r.draft_token_ids) <= 4 for r in target.requests)
            expected = {"beyond the vocabulary": 1.0, "too many": 1.0, "nothing": 0.0, "negative": 0.0}
            assert delta.completion is not None
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
                coordinator = assemble(target, drafting_for(target, 1.0), tokenizer)
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
                assert (coordinator.stats.running, coordinator.stats.waiting) == (0, 0)
                assert draft_failures(coordinator.stats) == 0

        run(main())

    def test_every_token_that_it_returns_is_its_own(self, run: Run, tokenizer: Tokenizer) -> None:
        """Also those that do not follow from the draft: the engine has discarded that."""

        class Target(OneShot):
            def say(self, request: Request) -> tuple[list[int], FinishReason]:
                return [7] * request.max_tokens, FinishReason.LENGTH

        async def main() -> None:
            draft = ScriptedExecutor(DRAFT, echo(range(50, 90), 5))
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=9)
            delta = await assemble(Target(TARGET), draft, tokenizer).complete(request)
            assert delta.token_ids == [7] * 9
            assert delta.completion is not None
            assert delta.completion.speculation.num_spec_steps == 0

        run(main())

    @pytest.mark.parametrize("num_draft_tokens", [0, 4])
    def test_says_nothing_more_and_not_why(
        self, run: Run, tokenizer: Tokenizer, num_draft_tokens: int
    ) -> None:
        class Target(OneShot):
            def say(self, request: Request) -> tuple[list[int], FinishReason]:
                return ([7] if len(request.input_token_ids) < 4 else []), FinishReason.NOT_FINISHED

        async def main() -> None:
            draft = ScriptedExecutor(DRAFT, echo(range(50, 90), 5))
            request = CompletionRequest(prompt_token_ids=[1], max_tokens=9, num_draft_tokens=num_draft_tokens)
            delta = await assemble(Target(TARGET), draft, tokenizer).complete(request)
            assert delta.completion is not None
            assert (delta.token_ids, delta.completion.end_reason) == ([7, 7, 7], EndReason.END_ID)

        run(main())

    @pytest.mark.parametrize("num_draft_tokens", [0, 4])
    def test_is_shut_down(self, run: Run, tokenizer: Tokenizer, num_draft_tokens: int) -> None:
        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5))
            coordinator = assemble(target, drafting_for(target, 1.0), tokenizer)
            request = CompletionRequest(
                prompt_token_ids=[1], max_tokens=40, num_draft_tokens=num_draft_tokens
            )
            said: list[int] = []

            async def listen() -> None:
                async for delta in coordinator.stream(request):
                    said.extend(delta.token_ids)
                    if len(said) >= 5 and target.cancelled == []:
                        asyncio.get_running_loop().call_soon(shut_down_when_busy, target)

            with pytest.raises(Cancelled):
                await listen()
            assert said == list(range(50, 50 + len(said)))
            assert 5 <= len(said) < 40

        run(main())

    @pytest.mark.parametrize("num_draft_tokens", [0, 4])
    def test_makes_no_progress(
        self, run: Run, tokenizer: Tokenizer, clock: Clock, num_draft_tokens: int
    ) -> None:
        """Those at work and those in the queue are told, and so is whoever runs the service."""

        async def main() -> None:
            target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), delay=3600)
            bounds = replace(BOUNDS, max_places=1, target_timeout_s=10.0)
            coordinator = assemble(target, drafting_for(target, 1.0), tokenizer, bounds=bounds)
            request = CompletionRequest(prompt_token_ids=[1], num_draft_tokens=num_draft_tokens)
            tasks = [asyncio.ensure_future(coordinator.complete(request)) for _ in range(2)]
            await until(lambda: target.in_flight and coordinator.stats.waiting)
            clock.seconds += 9.0
            await asyncio.sleep(3 * CHECK_S)
            assert coordinator.failure is None
            clock.seconds += 2.0
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            assert [type(end) for end in ends] == [EngineFailure, Busy]
            assert coordinator.failure == str(ends[0])
            assert "no progress for 10 s" in str(ends[0])
            with pytest.raises(Busy):
                await coordinator.complete(request)

        run(main())

    def test_fails_whatever_it_is_asked(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            is_broken = True
            target = ScriptedExecutor(
                TARGET, echo(range(50, 90), 5), fails=lambda _: "CUDA error" if is_broken else None
            )
            coordinator = assemble(target, None, tokenizer)
            request = CompletionRequest(prompt_token_ids=[1])
            for _ in range(MAX_FAILURES):
                with pytest.raises(EngineFailure):
                    await coordinator.complete(request)
            await until(lambda: coordinator.failure)
            assert coordinator.failure == "the target fails every request: CUDA error"

        run(main())

    def test_requests_that_fail_by_their_own_fault_end_nothing(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            target = ScriptedExecutor(
                TARGET,
                echo(range(50, 90), 5),
                fails=lambda request: "top_k is too large" if request.sampling.top_k == 9999 else None,
            )
            coordinator = assemble(target, None, tokenizer)
            bad = CompletionRequest(prompt_token_ids=[1], sampling=SamplingConfig(top_k=9999))
            for _ in range(2 * MAX_FAILURES):
                with pytest.raises(EngineFailure):
                    await coordinator.complete(bad)
                await asyncio.sleep(0)
            await until(lambda: len(target.requests) > 2 * MAX_FAILURES)  # the proof
            assert coordinator.failure is None
            assert await coordinator.complete(CompletionRequest(prompt_token_ids=[1]))

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
            coordinator = assemble(target, draft, tokenizer)

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
            assert (target.in_flight, draft.in_flight, coordinator.stats.running) == (0, 0, 0)
            assert len(target.cancelled) + len(draft.cancelled) > 5

        run(main())

    def test_does_not_wait_for_the_engine(self, run: Run, tokenizer: Tokenizer) -> None:
        async def main() -> None:
            for slow_draft, slow_target in ((60, 0), (0, 60)):
                target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), delay=slow_target)
                draft = drafting_for(target, 1.0, delay=slow_draft)
                slow = draft if slow_draft else target
                coordinator = assemble(target, draft, tokenizer)
                task = asyncio.ensure_future(coordinator.complete(CompletionRequest(prompt_token_ids=[1])))
                while not slow.in_flight:
                    await asyncio.sleep(0)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                assert (slow.in_flight, slow.cancelled) == (0, [1])

        run(main())
