"""The loop of the coordinator, with uvloop and as in NVIDIA's image, which has none."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

import pytest

from trtspec.serving.triton.loop import new_loop


@pytest.fixture(params=["uvloop", "asyncio"])
def loop(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[asyncio.AbstractEventLoop]:
    if request.param == "asyncio":
        monkeypatch.setitem(sys.modules, "uvloop", None)
    loop = new_loop()
    assert type(loop).__mro__[1].__module__.split(".")[0] == request.param
    yield loop
    loop.close()


def test_rounds_are_timed_by_the_microsecond(loop: asyncio.AbstractEventLoop) -> None:
    async def busy() -> list[float]:
        times = []
        for _ in range(20):
            begin, until = loop.time(), time.perf_counter() + 100e-6
            while time.perf_counter() < until:
                pass
            times.append(loop.time() - begin)
        return times

    assert all(seconds >= 99e-6 for seconds in loop.run_until_complete(busy()))


def test_a_deadline_is_kept(loop: asyncio.AbstractEventLoop) -> None:
    async def late() -> float:
        begin = loop.time()
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0.05)
        return loop.time() - begin

    assert 0.045 <= loop.run_until_complete(late()) < 60


def test_other_threads_are_heard_at_once(loop: asyncio.AbstractEventLoop) -> None:
    async def heard() -> str:
        told: asyncio.Future[str] = loop.create_future()
        await asyncio.to_thread(loop.call_soon_threadsafe, told.set_result, "text")
        return await told

    assert loop.run_until_complete(asyncio.wait_for(heard(), 120)) == "text"
