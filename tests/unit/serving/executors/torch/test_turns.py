from __future__ import annotations

import asyncio

from trtspec.serving.executors.torch.turns import Turns


class Player:
    """Writes its name down for each step of its work."""

    def __init__(self, name: str, work: int, log: list[str]) -> None:
        self.name, self.work, self.log = name, work, log

    @property
    def has_work(self) -> bool:
        return self.work > 0

    def step(self) -> None:
        self.work -= 1
        self.log.append(self.name)


async def ticks(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


def test_who_joined_first_goes_first():
    log: list[str] = []

    async def main() -> None:
        turns, draft, target = Turns(), Player("draft", 3, log), Player("target", 2, log)
        turns.join(draft)
        turns.join(target)
        turns.wake()
        turns.wake()
        assert log == []
        await ticks(2)
        draft.work += 1
        await ticks(20)

    asyncio.run(main())
    assert log == ["draft"] * 4 + ["target"] * 2


def test_tasks_run_between_steps():
    """What a task enqueues when its result comes takes part in the very next step."""
    log: list[str] = []

    async def main() -> None:
        turns, result = Turns(), asyncio.get_running_loop().create_future()

        class Engine(Player):
            def step(self) -> None:
                super().step()
                if not result.done():
                    result.set_result(None)

        turns.join(Engine("step", 3, log))
        turns.wake()
        await result
        log.append("task")
        await ticks(10)

    asyncio.run(main())
    assert log == ["step", "task", "step", "step"]


def test_a_step_that_raises_is_not_the_last():
    log: list[str] = []

    class Broken(Player):
        def step(self) -> None:
            super().step()
            raise ValueError

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda *_: log.append("raised"))
        turns = Turns()
        turns.join(Broken("broken", 1, log))
        turns.join(Player("other", 1, log))
        turns.wake()
        await ticks(10)

    asyncio.run(main())
    assert log == ["broken", "raised", "other"]
