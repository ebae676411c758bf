"""Completions that must not take longer than they may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from tests.fakes.clock import Clock, until
from tests.fakes.expected import Cases, assert_is, expect
from tests.fakes.languages import DRAFT, TARGET, Run, by_prompt, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, agreeing, babble, echo
from tests.support.draft_failures import draft_failures
from trtspec.serving.adaptive.policy import Policy
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.awaiting import within
from trtspec.serving.completion import NO_END, CompletionRequest
from trtspec.serving.coordinator import Coordinator
from trtspec.serving.errors import Busy, TimedOut
from trtspec.serving.executor import Limits, Listener, Request
from trtspec.serving.tokenizer import Tokenizer

BOUNDS = ServingBounds(max_places=256)


@pytest.mark.parametrize("slow", ["draft", "target", "target alone"])
def test_a_completion_has_a_limit(run: Run, tokenizer: Tokenizer, clock: Clock, slow: str) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), delay=0 if slow == "draft" else 3600)
        draft = drafting_for(target, 1.0, delay=3600 if slow == "draft" else 0)
        bounds = replace(BOUNDS, default_timeout_s=15.0, draft_timeout_s=100.0)
        coordinator = assemble(target, draft, tokenizer, bounds=bounds)
        num_draft_tokens = 0 if slow == "target alone" else 4
        own = CompletionRequest(prompt_token_ids=[1], num_draft_tokens=num_draft_tokens, timeout_s=5.0)
        others = replace(own, timeout_s=None)
        tasks = [asyncio.ensure_future(coordinator.complete(request)) for request in (own, others)]
        engine = draft if slow == "draft" else target
        await until(lambda: engine.in_flight == 2)
        clock.seconds += 5.0
        with pytest.raises(TimedOut, match="at token 0 of 16"):
            await tasks[0]
        assert not tasks[1].done()
        clock.seconds += 10.0
        with pytest.raises(TimedOut):
            await tasks[1]
        assert engine.in_flight == 0
        assert draft_failures(coordinator.stats) == 0

    run(main())


def test_the_queue_has_one(run: Run, tokenizer: Tokenizer, clock: Clock) -> None:
    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), delay=3600)
        bounds = replace(BOUNDS, max_places=1, max_queue_size=2, max_queue_delay_s=12.0)
        coordinator = assemble(target, None, tokenizer, bounds=bounds)
        request = CompletionRequest(prompt_token_ids=[1])
        working = asyncio.ensure_future(coordinator.complete(request))
        await until(lambda: target.in_flight)
        impatient = asyncio.ensure_future(coordinator.complete(replace(request, timeout_s=5.0)))
        patient = asyncio.ensure_future(coordinator.complete(request))
        await until(lambda: coordinator.stats.waiting == 2)
        with pytest.raises(Busy, match="1 completions are running and 2 wait already; try again later"):
            await coordinator.complete(request)
        clock.seconds += 5.0
        with pytest.raises(TimedOut, match="in the queue"):
            await impatient
        assert coordinator.stats.longest_wait_s >= 5.0
        clock.seconds += 7.0
        with pytest.raises(Busy, match="no slot became free within 12 s"):
            await patient
        assert not working.done()
        working.cancel()

    run(main())


def test_rounds_say_where_their_time_goes(
    run: Run, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second for each draft, three for each verification, and half of one for who reads the text."""
    clock = Clock()
    monkeypatch.setattr(asyncio.BaseEventLoop, "time", lambda _: clock.seconds)

    def takes(seconds: float) -> Callable[[Request], None]:
        def take(_: Request) -> None:
            clock.seconds += seconds

        return take

    async def main() -> None:
        target = ScriptedExecutor(TARGET, echo(range(50, 90), 5), fails=takes(3.0))
        draft = drafting_for(target, 1.0, fails=takes(1.0))
        coordinator = assemble(target, draft, tokenizer, bounds=BOUNDS)
        request = CompletionRequest(prompt_token_ids=[1], num_draft_tokens=4)
        async for _ in coordinator.stream(request):
            clock.seconds += 0.5
        times = coordinator.stats.round_times
        verified = coordinator.stats.by_origin["engine"].num_spec_steps
        assert verified == 3
        assert times.draft == pytest.approx(verified * 1.0)
        assert times.verification == pytest.approx(verified * 3.0)
        # After the third there is the last token, which is not drafted.
        assert times.overhead == pytest.approx(verified * 0.5)

    run(main())


async def turns(count: int, result: str = "done") -> str:
    for _ in range(count):
        await asyncio.sleep(0)
    return result


def test_work_within_its_time_returns_or_raises_its_own_outcome() -> None:
    async def fails() -> None:
        await turns(1)
        raise ValueError("no")

    assert asyncio.run(within(5, turns(3))) == "done"
    assert asyncio.run(within(None, turns(3))) == "done"
    with pytest.raises(ValueError, match="no"):
        asyncio.run(within(5, fails()))


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_work_that_takes_too_long_is_cancelled(seconds: float) -> None:
    ended = []

    async def works() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await turns(2)
            ended.append("ended")

    async def asks() -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for work in (asyncio.ensure_future(works()), future):
            await turns(1)
            with pytest.raises(asyncio.TimeoutError):
                await within(seconds, work)
            assert work.cancelled()

    asyncio.run(asks())
    assert ended == ["ended"]


@pytest.mark.parametrize("turn", range(6))
@pytest.mark.parametrize("count", range(4))
def test_a_cancellation_is_never_forgotten(count: int, turn: int) -> None:
    """Neither before the work has begun nor as it ends, when `asyncio.wait_for` would forget it."""
    went_on = []

    async def asks() -> None:
        await within(5, turns(count))
        await turns(10)
        went_on.append("to its end")

    async def whole() -> None:
        task = asyncio.get_running_loop().create_task(asks())
        await turns(turn)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(whole())
    assert went_on == []


SCHEDULE = {1: 8, 2: 5, 4: 2, 7: 0}
POLICIES: tuple[Policy, ...] = ("fixed", "adaptive")


def allowed(running: int) -> int:
    """What the schedule says in the words of its documentation, read row by row."""
    return 8 if running < 2 else 5 if running < 4 else 2 if running < 7 else 0


class Watched(ScriptedExecutor):
    """A draft engine that notes how much each round asks of it, and how many completions run then."""

    def __init__(self, limits: Limits, coordinators: Sequence[Coordinator], target: ScriptedExecutor) -> None:
        super().__init__(limits, agreeing(target.next_token, limits.vocab_size, 1.0))
        self.coordinators = coordinators
        self.asked: list[tuple[int, int]] = []

    def enqueue_request(self, request: Request, listener: Listener) -> int:
        self.asked.append((self.coordinators[0].stats.running, request.max_tokens))
        return super().enqueue_request(request, listener)


def scheduled(tokenizer: Tokenizer, policy: Policy, places: int = 12) -> tuple[Coordinator, Watched]:
    target, coordinators = ScriptedExecutor(TARGET, babble(TARGET.vocab_size)), list[Coordinator]()
    draft = Watched(DRAFT, coordinators, target)
    bounds = ServingBounds(places, draft_schedule=SCHEDULE)
    coordinators.append(assemble(target, draft, tokenizer, bounds=bounds, policy=policy))
    return coordinators[0], draft


def request(length: int, num_draft_tokens: int | None = None) -> CompletionRequest:
    return CompletionRequest(
        prompt_token_ids=[length % 7 + 1],
        max_tokens=length,
        end_id=NO_END,
        num_draft_tokens=num_draft_tokens,
    )


@pytest.mark.parametrize("named", [None, 8], ids=["server's K", "request's K"])
@pytest.mark.parametrize("policy", POLICIES)
def test_no_round_drafts_more_than_the_schedule_allows(
    run: Run, tokenizer: Tokenizer, policy: Policy, named: int | None
) -> None:
    """Texts of all lengths begin and end all the time, so the load goes up and down through every row."""

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, policy)

        async def client(index: int) -> None:
            for turn in range(4):
                await asyncio.sleep(0.002 * ((index * 5 + turn) % 7))
                await coordinator.complete(request(40 + 25 * ((index + turn) % 8), named))

        await asyncio.gather(*map(client, range(9)))
        assert [pair for pair in draft.asked if pair[1] > allowed(pair[0])] == []
        assert {length for _, length in draft.asked if length}, "nothing was drafted"

    run(main())


@pytest.mark.parametrize("policy", POLICIES)
def test_k_changes_as_streams_come_and_go(run: Run, tokenizer: Tokenizer, policy: Policy) -> None:
    """One stream has long drafts, seven have none at all, and the last one of them has drafts again."""

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, policy)
        long = asyncio.ensure_future(coordinator.complete(request(380)))
        while len(draft.asked) < 3:
            await asyncio.sleep(0)
        alone, others = len(draft.asked), [coordinator.complete(request(60)) for _ in range(6)]
        await asyncio.gather(*others)
        crowded = draft.asked[alone:]
        assert [pair for pair in crowded if pair[0] >= 7] == []
        assert coordinator.stats.fallbacks["policy"] >= 6
        assert not long.done()
        before = len(draft.asked)
        await long
        assert any(running == 1 and length for running, length in draft.asked[before:])

    run(main())


@pytest.mark.parametrize("length", [2, 5])
def test_the_fixed_policy_drafts_as_much_as_is_allowed(run: Run, tokenizer: Tokenizer, length: int) -> None:
    running = {2: 4, 5: 2}[length]

    async def main() -> None:
        coordinator, draft = scheduled(tokenizer, "fixed")
        await asyncio.gather(*(coordinator.complete(request(200)) for _ in range(running)))
        lengths = [asked for now, asked in draft.asked if now == running]
        assert max(lengths) == length
        assert lengths.count(length) > len(lengths) / 2

    run(main())


@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_the_targets_own(
    run: Run, tokenizer: Tokenizer, byte_level: object, cases: Cases, policy: Policy
) -> None:
    requests, languages = cases

    async def main() -> None:
        target = ScriptedExecutor(TARGET, by_prompt(languages))
        bounds = ServingBounds(8, draft_schedule=SCHEDULE)
        draft = drafting_for(target, 0.8)
        coordinator = assemble(target, draft, tokenizer, bounds=bounds, policy=policy)
        deltas = await asyncio.gather(*(coordinator.complete(each) for each in requests))
        for each, delta in zip(requests, deltas, strict=True):
            assert_is(delta, expect(each, by_prompt(languages), tokenizer, byte_level.decode))  # type: ignore[attr-defined]

    run(main())
