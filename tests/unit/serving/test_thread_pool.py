"""Calls that block, some of them for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from trtspec.serving import errors
from trtspec.serving.thread_pool import BoundedCalls, ThreadPool

SECONDS = 120


class Call:
    """Blocks until it is let go."""

    def __init__(self) -> None:
        self.began, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.began.set()
        self.may_end.wait(SECONDS)
        self.ended.set()


def alive(name: str) -> int:
    return sum(thread.name.startswith(name) for thread in threading.enumerate())


def eventually(happens: Callable[[], bool]) -> bool:
    pause = threading.Event()
    return any(happens() or pause.wait(0.01) for _ in range(SECONDS * 100))


def test_as_many_at_once_as_there_are_threads() -> None:
    threads, calls = ThreadPool(2, "two"), [Call() for _ in range(3)]
    for call in calls:
        threads.submit(call)
    assert calls[0].began.wait(SECONDS)
    assert calls[1].began.wait(SECONDS)
    assert not calls[2].began.wait(0.05)
    calls[0].may_end.set()
    assert calls[2].began.wait(SECONDS)
    for call in calls:
        call.may_end.set()
    threads.close()
    assert eventually(lambda: alive("two") == 0)


def test_a_thread_is_used_again() -> None:
    threads = ThreadPool(4, "again")
    for _ in range(20):
        call = Call()
        call.may_end.set()
        threads.submit(call)
        assert call.ended.wait(SECONDS)
    assert alive("again") <= 2
    threads.close()


def test_a_job_given_up_before_it_begins_never_runs() -> None:
    threads, calls = ThreadPool(1, "unbegun"), [Call(), Call()]
    jobs = [threads.submit(call) for call in calls]
    assert calls[0].began.wait(SECONDS)
    assert threads.give_up(jobs[1])
    calls[0].may_end.set()
    assert calls[0].ended.wait(SECONDS)
    assert not calls[1].began.wait(0.05)
    threads.close()


def test_giving_up_a_call_that_is_over_costs_no_thread() -> None:
    threads, call = ThreadPool(1, "over"), Call()
    call.may_end.set()
    job = threads.submit(call)
    assert eventually(lambda: job.is_over)
    assert threads.give_up(job)
    left, later = Call(), Call()
    running = threads.submit(left)
    assert left.began.wait(SECONDS)
    assert not threads.give_up(running)
    threads.submit(later)
    assert later.began.wait(SECONDS)
    for each in (left, later):
        each.may_end.set()
    threads.close()


def test_a_call_that_hangs_takes_nobodys_place_and_there_is_an_end_to_that() -> None:
    threads, hung = ThreadPool(2, "hung"), [Call() for _ in range(2)]
    jobs = [threads.submit(call) for call in hung]
    for call, job in zip(hung, jobs, strict=True):
        assert call.began.wait(SECONDS)
        assert not threads.give_up(job)
    others = [Call() for _ in range(2)]
    stuck = [threads.submit(call) for call in others]
    for call, job in zip(others, stuck, strict=True):
        assert call.began.wait(SECONDS)
        threads.give_up(job)
    late = Call()
    threads.submit(late)
    assert not late.began.wait(0.05)
    assert alive("hung") == 4

    for call in [*hung, *others, late]:
        call.may_end.set()
    assert late.ended.wait(SECONDS)
    assert eventually(lambda: alive("hung") <= 2)
    threads.close()
    assert eventually(lambda: alive("hung") == 0)


LIMIT_S = 0.02


def are_alive() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("bounded")]


class Busy:
    """A call that takes all of a processor until it is told to end."""

    def __init__(self) -> None:
        self.may_end = threading.Event()

    def __call__(self) -> None:
        while not self.may_end.is_set():
            pass


@pytest.fixture
def calls() -> Iterator[BoundedCalls]:
    made = BoundedCalls(LIMIT_S, "bounded")
    yield made
    made.close()


@pytest.fixture
def busy() -> Iterator[Busy]:
    call = Busy()
    yield call
    call.may_end.set()


def test_a_call_that_ends_in_time_is_waited_for(calls: BoundedCalls) -> None:
    said: list[str] = []
    for text in "abc":
        calls.make(lambda text=text: said.append(text))  # type: ignore[misc]
    assert said == ["a", "b", "c"]


def test_a_call_that_waits_for_a_processor_is_not_given_up(calls: BoundedCalls) -> None:
    """A call that sleeps stands for one that a busy machine lets wait."""
    said: list[str] = []

    def work() -> None:
        time.sleep(5 * LIMIT_S)
        said.append("done")

    calls.make(work)
    assert said == ["done"]


def test_two_calls_that_hang_are_left_behind_and_a_further_call_is_refused(
    calls: BoundedCalls, busy: Busy
) -> None:
    said: list[str] = []
    with pytest.raises(TimeoutError):
        calls.make(busy)
    calls.make(lambda: said.append("the next does not wait"))
    with pytest.raises(TimeoutError):
        calls.make(busy)
    with pytest.raises(errors.Busy):
        calls.make(lambda: said.append("never"))
    assert said == ["the next does not wait"]

    busy.may_end.set()
    deadline = time.monotonic() + SECONDS
    while calls._threads.is_lost and time.monotonic() < deadline:
        time.sleep(0.001)
    calls.make(lambda: said.append("again"))
    assert said[1:] == ["again"]

    calls.close()
    while (threads := are_alive()) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads == []
