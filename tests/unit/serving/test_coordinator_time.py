"""Completions that must not take longer than they may."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.draft_failures import draft_failures
from tests.fakes.clock import Clock, until
from tests.fakes.languages import TARGET, Run, drafting_for
from tests.fakes.scripted_executor import ScriptedExecutor, echo
from trtspec.serving.admission import ServingBounds
from trtspec.serving.assembly import assemble
from trtspec.serving.completion import CompletionRequest
from trtspec.serving.errors import Busy, TimedOut
from trtspec.serving.executor import Request
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


def test_rounds_say_where_their_time_goes(run: Run, tokenizer: Tokenizer, clock: Clock) -> None:
    """A second for each draft, three for each verification, and half of one for who reads the text."""

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
        assert times.draft == pytest.approx(verified * 1.0, abs=0.1)
        assert times.verification == pytest.approx(verified * 3.0, abs=0.1)
        # After the third there is the last token, which is not drafted.
        assert times.overhead == pytest.approx(verified * 0.5, abs=0.1)

    run(main())
