from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import torch

from tests.fakes.clock import HandClock
from trtspec.serving.executor import Response
from trtspec.serving.executors.torch import device_thread as module
from trtspec.serving.executors.torch.device_thread import DeviceThread


class Engine:
    """Each of its steps takes one of its works and says what that says."""

    longest_draft = 4

    def __init__(self, device_thread: DeviceThread, log: list[str], name: str = "step") -> None:
        self.works: list[Callable[[], object]] = []
        self.device_thread, self.log, self.name = device_thread, log, name
        device_thread.join(self)

    @property
    def has_work(self) -> bool:
        return bool(self.works)

    def step(self) -> int:
        self.log.append(self.name)
        self.works.pop(0)()
        return 1

    def add(self, *works: Callable[[], object]) -> None:
        self.device_thread.post(self.works.extend, works)


def nothing() -> None:
    pass


def answer(device_thread: DeviceThread, hear: Callable[[Response], None]) -> Callable[[], object]:
    return lambda: device_thread.say(hear, Response(1, [], is_final=True))


def run(main: Callable[[DeviceThread, list[str]], Awaitable[object]]) -> list[str]:
    """The log of `main`, a coroutine function, on a thread that no engine uses any more at the end."""
    log: list[str] = []

    async def whole() -> None:
        device_thread = DeviceThread()
        await asyncio.wait_for(main(device_thread, log), 10)

    before = {*threading.enumerate()}
    asyncio.run(whole())
    assert {*threading.enumerate()} <= before, "a thread was left behind"
    return log


def test_work_posted_together_arrives_before_the_first_step_of_any_engine() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        done = asyncio.Event()
        draft, target = Engine(device_thread, log, "draft"), Engine(device_thread, log, "target")
        target.add(nothing, answer(device_thread, lambda _: done.set()))
        draft.add(nothing, nothing)
        await done.wait()
        device_thread.leave(draft)
        device_thread.leave(target)

    assert run(main) == ["draft", "draft", "target", "target"]


def test_tasks_that_an_answer_wakes_have_their_say_before_the_next_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The draft's answer leads to more draft work, three tasks on, before the waiting target goes."""
    clock = HandClock()
    monkeypatch.setattr(module, "time", clock)

    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        draft, target = Engine(device_thread, log, "draft"), Engine(device_thread, log, "target")
        answered, heard, done = (asyncio.Event() for _ in range(3))

        async def relay() -> None:
            await answered.wait()
            heard.set()

        def slow() -> None:
            clock.now += 60.0  # How long the loop has to answer.
            device_thread.say(lambda _: answered.set(), Response(1, [], is_final=True))

        relayed = asyncio.create_task(relay())
        draft.add(slow)
        target.add(answer(device_thread, lambda _: done.set()))
        await heard.wait()
        draft.add(nothing)
        await done.wait()
        await relayed
        device_thread.leave(draft)
        device_thread.leave(target)

    assert run(main) == ["draft", "draft", "target"]


def test_the_loop_is_free_while_a_step_runs() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        done, go_on = asyncio.Event(), threading.Event()
        engine = Engine(device_thread, log)
        engine.add(lambda: go_on.wait(10), answer(device_thread, lambda _: done.set()))
        while not log:
            await asyncio.sleep(0)
        log.append("loop")
        go_on.set()
        await done.wait()
        device_thread.leave(engine)

    assert run(main) == ["step", "loop", "step"]


def test_a_loop_that_does_not_answer_holds_nothing_up_for_long() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        stepped = threading.Event()
        engine = Engine(device_thread, log)
        engine.add(answer(device_thread, lambda _: log.append(f"{stepped.wait(10)}")), stepped.set)
        while len(log) < 3:
            await asyncio.sleep(0)
        device_thread.leave(engine)

    assert run(main) == ["step", "step", "True"]


def test_a_listener_that_raises_does_not_stop_the_others() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        done = asyncio.Event()
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: log.append(str(context["exception"]))
        )
        engine = Engine(device_thread, log)

        def both() -> None:
            device_thread.say(lambda _: [][0], Response(1, [], is_final=True))
            device_thread.say(lambda _: done.set(), Response(2, [], is_final=True))

        engine.add(both)
        await done.wait()
        device_thread.leave(engine)

    assert run(main) == ["step", "list index out of range"]


def test_leaving_waits_for_the_step_that_runs() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        running = threading.Event()

        def slow() -> None:
            running.set()
            time.sleep(0.05)
            log.append("slept")

        engine = Engine(device_thread, log)
        engine.add(slow)
        while not running.is_set():
            await asyncio.sleep(0)
        device_thread.leave(engine)
        log.append("left")

    assert run(main) == ["step", "slept", "left"]


def test_a_thread_comes_back_for_whom_joins_later() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        async def play(name: str) -> None:
            done, engine = asyncio.Event(), Engine(device_thread, log, name)
            engine.add(answer(device_thread, lambda _: done.set()))
            await done.wait()
            device_thread.leave(engine)

        await play("one")
        await play("two")

    assert run(main) == ["one", "two"]


def test_a_thread_that_has_ended_leaves_the_process_its_number_of_threads() -> None:
    found: list[int] = []

    def threads() -> int:
        found.append(torch.get_num_threads())
        return 1

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        for _ in range(2):
            device_thread = DeviceThread(threads)
            device_thread.leave(Engine(device_thread, []))
    finally:
        torch.set_num_threads(before)
    assert found == [3, 3]


def test_nobody_is_left_behind_who_never_played() -> None:
    async def main(device_thread: DeviceThread, log: list[str]) -> None:
        device_thread.leave(Engine(device_thread, log))

    assert run(main) == []


@pytest.mark.parametrize("loops", [2])
def test_one_loop_after_another(loops: int) -> None:
    log: list[str] = []
    device_thread = DeviceThread()
    engine = Engine(device_thread, log)

    async def main() -> None:
        done = asyncio.Event()
        engine.add(answer(device_thread, lambda _: done.set()))
        await asyncio.wait_for(done.wait(), 10)

    for _ in range(loops):
        asyncio.run(main())
    device_thread.leave(engine)
    assert log == ["step"] * loops
