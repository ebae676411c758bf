from __future__ import annotations

import threading
from pathlib import Path

import pytest

from trtspec.base.progress import Advance
from trtspec.pipeline.run.runner import groups, run_together
from trtspec.pipeline.run.step import Step


def step(name: str, *gpus: str, after: tuple[str, ...] = ()) -> Step:
    def nothing(made: Path, advance: Advance) -> None:
        return

    return Step(name, "", (), name, (), "", nothing, after=after, gpus=gpus)


def grouped(*steps: Step) -> list[str]:
    return [" ".join(step.name for step in group) for group in groups(steps)]


def test_only_steps_with_gpus_of_their_own_are_together() -> None:
    assert grouped(step("a"), step("b"), step("c", "0"), step("d", "1"), step("e")) == ["a", "b", "c d", "e"]
    assert grouped(step("c", "0", "1"), step("d", "1")) == ["c", "d"]
    assert grouped(step("c", "0"), step("d", "1", after=("c",))) == ["c", "d"]
    assert grouped(step("c", "0"), step("d", "1"), step("e", "2")) == ["c d e"]
    assert grouped() == []


class Together:
    """Two jobs that can only end if both run at once."""

    def __init__(self) -> None:
        self.barrier = threading.Barrier(2, timeout=10)
        self.heard: list[tuple[int, str]] = []

    def advance(self, amount: int, note: str = "", /) -> None:
        self.heard.append((amount, note))

    def job(self, advance: Advance) -> None:
        self.barrier.wait()
        advance(1, "working")


def test_jobs_run_at_once_and_are_told_of_as_they_end() -> None:
    pair = Together()
    ended = dict(run_together([pair.job, pair.job], pair.advance))
    assert sorted(ended) == [0, 1]
    assert all(0 <= seconds < 10 for seconds in ended.values())
    assert sorted(pair.heard) == [(1, "working"), (1, "working | working")]


def test_one_job_runs_where_it_was_asked_for() -> None:
    """In the main thread Ctrl-C reaches it at once."""
    threads = []
    list(run_together([lambda _: threads.append(threading.current_thread())], Together().advance))
    assert threads == [threading.current_thread()]


def test_a_failure_ends_the_others_at_their_next_word() -> None:
    pair, stopped = Together(), threading.Event()

    def fails(advance: Advance) -> None:
        pair.barrier.wait()
        raise ValueError("no luck")

    def goes_on(advance: Advance) -> None:
        pair.barrier.wait()
        try:
            while True:
                advance(0, "still here")
                threading.Event().wait(0.001)
        finally:
            stopped.set()

    with pytest.raises(ValueError, match="no luck"):
        list(run_together([goes_on, fails], pair.advance))
    assert stopped.is_set()
