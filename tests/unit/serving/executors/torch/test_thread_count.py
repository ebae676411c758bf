from __future__ import annotations

import math

import pytest

from trtspec.serving.executors.torch.thread_count import ThreadCount

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
