from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.scripted_executor import ScriptedExecutor, babble
from trtspec.serving.async_executor import AsyncExecutor
from trtspec.serving.errors import Cancelled, EngineFailure, EngineTimedOut
from trtspec.serving.executor import FinishReason, Limits, Request

LIMITS = Limits(max_batch_size=4, max_input_len=64, max_seq_len=100, max_draft_len=8, vocab_size=50)
PROMPT = (1, 2, 3)
WHOLE, STREAMED = Request(PROMPT, 5), Request(PROMPT, 5, streaming=True)

Run = Callable[[Any], Any]


def said(length: int) -> list[int]:
    text, language = list(PROMPT), babble(50)
    while len(text) < len(PROMPT) + length:
        text.append(language(text))
    return text[len(PROMPT) :]


def ask(engine: AsyncExecutor, until: float = math.inf) -> list[asyncio.Future[Any]]:
    """A request that does not stream and one that does."""
    stream = engine.answers(STREAMED, until)
    return [asyncio.ensure_future(engine.answer(WHOLE, until)), asyncio.ensure_future(anext(stream))]


def test_answer(run: Run) -> None:
    async def main() -> None:
        response = await AsyncExecutor(ScriptedExecutor(LIMITS, babble(50))).answer(WHOLE, math.inf)
        assert (response.token_ids, response.finish_reason) == (said(5), FinishReason.LENGTH)

    run(main())


def test_answers(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50))
        engine = AsyncExecutor(executor)
        heard = [r async for r in engine.answers(STREAMED, math.inf)]
        assert [token_id for response in heard for token_id in response.token_ids] == said(5)
        assert [response.is_final for response in heard] == [False] * 4 + [True]
        assert (executor.cancelled, engine.is_busy) == ([], False)

    run(main())


def test_an_engines_error_is_raised(run: Run) -> None:
    async def main() -> None:
        engine = AsyncExecutor(ScriptedExecutor(LIMITS, babble(50), fails=lambda request: "out of memory"))
        for asked in ask(engine):
            with pytest.raises(EngineFailure, match=r"^out of memory$"):
                await asked
        assert not engine.is_busy

    run(main())


def test_a_request_that_the_engine_ends_is_no_answer(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50), delay=60)
        asked = ask(AsyncExecutor(executor))
        await asyncio.sleep(0)
        executor.shutdown()
        for each in asked:
            with pytest.raises(Cancelled):
                await each

    run(main())


def test_an_engine_that_says_nothing_is_left_in_time(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50), delay=60)
        engine = AsyncExecutor(executor)
        asked = ask(engine, until=100.0)
        await asyncio.sleep(0)
        engine.reap(99.9)
        await asyncio.sleep(0)
        assert not any(each.done() for each in asked)
        engine.reap(100.0)
        for each in asked:
            with pytest.raises(EngineTimedOut):
                await each
        assert (executor.cancelled, executor.in_flight, engine.is_busy) == ([1, 2], 0, False)

    run(main())


def test_all_are_told_when_no_answer_will_come(run: Run) -> None:
    async def main() -> None:
        engine = AsyncExecutor(ScriptedExecutor(LIMITS, babble(50), delay=60))
        asked = ask(engine)
        await asyncio.sleep(0)
        engine.fail("CUDA is gone")
        for each in asked:
            with pytest.raises(EngineFailure, match=r"^CUDA is gone$"):
                await each

    run(main())


def test_cancelling_the_task_cancels_the_request(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50), delay=60)
        asked = ask(AsyncExecutor(executor))
        await asyncio.sleep(0)
        for each in asked:
            each.cancel()
        ends = await asyncio.gather(*asked, return_exceptions=True)
        assert [type(end) for end in ends] == [asyncio.CancelledError] * 2
        assert executor.cancelled == [1, 2]

    run(main())


def test_closing_the_stream_cancels_the_request(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50))
        stream = AsyncExecutor(executor).answers(Request(PROMPT, 50, streaming=True), math.inf)
        assert (await anext(stream)).token_ids == said(1)
        await stream.aclose()
        assert executor.cancelled == [1]

    run(main())
