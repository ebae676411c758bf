from __future__ import annotations

from trtspec.serving.executors.torch.thread_count import ThreadCount


class Machine:
    """Processors that a busy program takes some of; a step takes 10 ms."""

    def __init__(self, processors: int) -> None:
        self.processors, self.taken, self.now, self.set = processors, 0.0, 0.0, 0
        self.threads = ThreadCount(
            processors, lambda threads: setattr(self, "set", threads), lambda: self.now
        )

    def run(self, seconds: float) -> list[int]:
        """The threads of each step."""
        steps = []
        for _ in range(round(seconds * 100)):
            self.now += 0.01
            steps.append(self.set)
            got = min(self.set, max(self.processors - self.taken, self.set / 2))
            self.threads.note(0.01, 0.01 * got)
        return steps


def test_all_of_a_quiet_machine() -> None:
    assert set(Machine(2).run(60)) == {2}


def test_one_less_beside_a_busy_program_and_back_when_it_is_gone() -> None:
    machine = Machine(2)
    machine.taken = 1
    steps = machine.run(60)
    assert steps[:3] == [2] * 3
    assert steps.count(2) < len(steps) // 50, "tries cost more than they may"
    machine.taken = 0
    assert machine.run(20)[-1] == 2
    assert set(machine.run(20)) == {2}


def test_a_short_disturbance_costs_a_second() -> None:
    machine = Machine(2)
    machine.taken = 1
    machine.run(0.1)
    machine.taken = 0
    assert machine.run(10).count(1) < 150


def test_as_many_as_are_left_of_a_large_machine() -> None:
    machine = Machine(16)
    machine.taken = 5
    assert 9 <= machine.run(10)[-1] <= 11
    machine.taken = 0
    assert machine.run(40)[-1] == 16


def test_one_is_the_least() -> None:
    machine = Machine(2)
    machine.taken = 2
    assert machine.run(10)[-1] == 1
