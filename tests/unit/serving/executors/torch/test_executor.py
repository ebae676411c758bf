"""What the contract does not see: counters, failures inside a step, the end of an engine."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakes.engine_dir import tiny_llama, write_engine
from trtspec.serving.executor import Request, Response
from trtspec.serving.executors.torch.executor import TorchExecutor
from trtspec.serving.executors.torch.turns import Turns


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    return write_engine(tmp_path / "engine", tiny_llama())


async def ask(executor: TorchExecutor, request: Request) -> Response:
    answer = asyncio.get_running_loop().create_future()
    executor.enqueue_request(request, answer.set_result)
    return await asyncio.wait_for(answer, 20)


def test_requests_in_flight_share_a_step(engine: Path) -> None:
    async def main() -> TorchExecutor:
        executor = TorchExecutor(engine)
        await asyncio.gather(*(ask(executor, Request([i + 1, 5, 9], 10)) for i in range(4)))
        return executor

    stats = asyncio.run(main()).stats
    assert (stats.steps, stats.rows) == (10, 4 * (3 + 9))


def test_verifications_wait_for_drafts_and_go_together(engine: Path, tmp_path: Path) -> None:
    """Four streams of rounds, of different prompt lengths, fall into step."""

    async def main() -> tuple[TorchExecutor, TorchExecutor]:
        turns = Turns()
        draft = TorchExecutor(write_engine(tmp_path / "draft", tiny_llama(1), max_draft_len=0), turns=turns)
        target = TorchExecutor(engine, turns=turns)

        async def stream(text: list[int]) -> None:
            for _ in range(5):
                proposed = await ask(draft, Request(text, 3))
                verified = await ask(target, Request(text, 4, draft_token_ids=proposed.token_ids))
                text = text + verified.token_ids

        await asyncio.gather(*(stream([i + 1] * (4 * i + 1)) for i in range(4)))
        return draft, target

    draft, target = asyncio.run(main())
    assert target.stats.steps == 5
    assert draft.stats.steps == 15


def test_a_step_that_fails_ends_its_requests_and_no_more(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        executor = TorchExecutor(engine)
        before = await ask(executor, Request([1, 2, 3], 5))
        with monkeypatch.context() as patch:
            patch.setattr(executor._model, "forward", lambda *_: 1 / 0)
            failed = await ask(executor, Request([1, 2, 3], 5))
        assert failed.error == "The engine failed: division by zero"
        assert (failed.is_final, failed.token_ids) == (True, [])
        reused = executor.stats.reused_tokens
        after = await ask(executor, Request([1, 2, 3], 5))
        assert after.token_ids == before.token_ids
        assert executor.stats.reused_tokens == reused, "the cache of a failed step was trusted"

    asyncio.run(main())


def test_an_engine_that_is_shut_down_says_so(engine: Path) -> None:
    async def main() -> Response:
        executor = TorchExecutor(engine)
        executor.shutdown()
        return await ask(executor, Request([1, 2, 3], 5))

    assert asyncio.run(main()).error == "The engine is shut down"


def test_the_serving_package_stands_alone() -> None:
    """It is copied into model repositories, where nothing of trtspec outside `serving` is."""
    code = (
        "import sys, trtspec.serving.executors.torch.executor;"
        "print(*sorted(m for m in sys.modules if m.startswith('trtspec.')"
        " and not m.startswith('trtspec.serving')), 'transformers' in sys.modules)"
    )
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.split() == ["False"]
