from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from tests.fakes.scripted_executor import ScriptedExecutor, babble
from trtspec.serving.calls import answer, answers
from trtspec.serving.errors import EngineFailure
from trtspec.serving.executor import FinishReason, Limits, Request

LIMITS = Limits(max_batch_size=4, max_input_len=64, max_seq_len=100, max_draft_len=8, vocab_size=50)
PROMPT = (1, 2, 3)

Run = Callable[[Any], Any]


def said(length: int) -> list[int]:
    text, language = list(PROMPT), babble(50)
    while len(text) < len(PROMPT) + length:
        text.append(language(text))
    return text[len(PROMPT) :]


def test_answer(run: Run) -> None:
    async def main() -> None:
        response = await answer(ScriptedExecutor(LIMITS, babble(50)), Request(PROMPT, 5))
        assert (response.token_ids, response.finish_reason) == (said(5), FinishReason.LENGTH)

    run(main())


def test_answers(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50))
        heard = [r async for r in answers(executor, Request(PROMPT, 5, streaming=True))]
        assert [token_id for response in heard for token_id in response.token_ids] == said(5)
        assert [response.is_final for response in heard] == [False] * 4 + [True]
        assert executor.cancelled == []

    run(main())


def test_an_engines_error_is_raised(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50), fails=lambda request: "out of memory")
        with pytest.raises(EngineFailure, match=r"^out of memory$"):
            await answer(executor, Request(PROMPT, 5))
        with pytest.raises(EngineFailure, match=r"^out of memory$"):
            await anext(answers(executor, Request(PROMPT, 5, streaming=True)))

    run(main())


def test_cancelling_the_task_cancels_the_request(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50), delay=60)
        stream = answers(executor, Request(PROMPT, 5, streaming=True))
        tasks = [
            asyncio.ensure_future(answer(executor, Request(PROMPT, 5))),
            asyncio.ensure_future(anext(stream)),
        ]
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        assert [type(end) for end in await asyncio.gather(*tasks, return_exceptions=True)] == [
            asyncio.CancelledError
        ] * 2
        assert executor.cancelled == [1, 2]

    run(main())


def test_closing_the_stream_cancels_the_request(run: Run) -> None:
    async def main() -> None:
        executor = ScriptedExecutor(LIMITS, babble(50))
        stream = answers(executor, Request(PROMPT, 50, streaming=True))
        assert (await anext(stream)).token_ids == said(1)
        await stream.aclose()
        assert executor.cancelled == [1]

    run(main())
