from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import torch

from tests.fakes.clock import HandClock
from trtspec.serving.executor import Response
from trtspec.serving.executors.torch import device_thread as module
from trtspec.serving.executors.torch.device_thread import DeviceThread, ThreadCount

STEP_S = 0.01


class Machine:
    """Processors of which other programs take some, and steps that take `STEP_S` on all of them.

    Threads without a processor of their own make a step `slower` as many times as there are such.
    """

    def __init__(self, processors: int, slower: float = 6.0) -> None:
        self.processors, self.taken, self.now, self.set, self.slower = processors, 0.0, 0.0, 0, slower
        self.threads = ThreadCount(
            processors, lambda threads: setattr(self, "set", threads), lambda: self.now
        )

    def step(self, rows: int = 16) -> float:
        """Returns the seconds of one."""
        left = self.processors - self.taken
        lacking = max(self.set - left, 0.0)
        took = STEP_S * math.sqrt(self.processors / self.set) * (1 + (self.slower - 1) * lacking) * rows / 16
        self.now += took
        got = min(self.set, max(left, self.set / 2))
        self.threads.note(took, took * got, 0, rows)
        return took

    def run(self, seconds: float) -> list[tuple[int, float]]:
        """Returns the threads of each step, and its seconds."""
        until, steps = self.now + seconds, []
        while self.now < until:
            threads = self.set
            steps.append((threads, self.step()))
        return steps


def share(steps: list[tuple[int, float]], threads: int) -> float:
    """Returns the share of the time that steps on so many threads took."""
    return sum(took for count, took in steps if count == threads) / sum(took for _, took in steps)


def test_all_of_a_quiet_machine() -> None:
    assert share(Machine(2).run(60), 2) == 1


def test_one_less_beside_a_busy_program_and_back_when_it_is_gone() -> None:
    machine = Machine(2)
    machine.taken = 1
    steps = machine.run(60)
    assert [threads for threads, _ in steps[:2]] == [2] * 2
    assert share(steps, 2) < 0.04, "tries cost more than they may"
    machine.taken = 0
    machine.run(10)
    assert share(machine.run(20), 2) == 1


def test_a_short_disturbance_costs_a_second() -> None:
    machine = Machine(2)
    machine.taken = 1
    machine.run(0.3)
    machine.taken = 0
    assert share(machine.run(10), 1) < 0.15


@pytest.mark.parametrize(("slower", "threads"), [(1.5, 2), (3.0, 1)])
def test_beside_programs_that_take_a_processor_now_and_then_the_faster_number(
    slower: float, threads: int
) -> None:
    machine = Machine(2, slower)
    machine.taken = 0.5
    machine.run(20)
    assert share(machine.run(60), threads) > 0.96


def test_as_many_as_are_left_of_a_large_machine() -> None:
    machine = Machine(16)
    machine.run(1)
    machine.taken = 5
    assert 9 <= machine.run(10)[-1][0] <= 11
    machine.taken = 0
    assert machine.run(40)[-1][0] == 16


def test_one_is_the_least() -> None:
    machine = Machine(2)
    machine.taken = 2
    assert machine.run(10)[-1][0] == 1


def test_steps_of_another_size_are_not_taken_for_faster_ones() -> None:
    """A try in which prompts are read, of which nothing is known, ends without a change."""
    machine = Machine(2)
    machine.taken = 0.5
    while machine.set == 2:
        machine.step()
    while machine.set == 1:
        machine.step(rows=1)
    assert machine.threads.now == 2


def test_a_step_in_which_nothing_was_computed_tells_nothing() -> None:
    """Requests that end at once take no time, and beside that any number of threads would seem slow."""
    machine = Machine(2)
    for _ in range(20):
        took = machine.step(rows=1)
        machine.threads.note(1e-6, 1e-6, 0, 0)

    assert list(machine.threads._usual.values()) == pytest.approx([took])


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
        await asyncio.wait_for(main(device_thread, log), 120)

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
        engine.add(lambda: go_on.wait(120), answer(device_thread, lambda _: done.set()))
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
        engine.add(answer(device_thread, lambda _: log.append(f"{stepped.wait(120)}")), stepped.set)
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
        await asyncio.wait_for(done.wait(), 120)

    for _ in range(loops):
        asyncio.run(main())
    device_thread.leave(engine)
    assert log == ["step"] * loops
