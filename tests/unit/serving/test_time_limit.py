from __future__ import annotations

import asyncio

import pytest

from trtspec.serving.awaiting import within


async def turns(count: int, result: str = "done") -> str:
    for _ in range(count):
        await asyncio.sleep(0)
    return result


def test_it_returns_or_raises_what_the_work_does() -> None:
    async def fails() -> None:
        await turns(1)
        raise ValueError("no")

    assert asyncio.run(within(5, turns(3))) == "done"
    assert asyncio.run(within(None, turns(3))) == "done"
    with pytest.raises(ValueError, match="no"):
        asyncio.run(within(5, fails()))


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_what_takes_too_long_is_ended(seconds: float) -> None:
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
