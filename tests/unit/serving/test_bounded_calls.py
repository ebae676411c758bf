"""Calls that take too long, and what becomes of those after them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from trtspec.serving import errors
from trtspec.serving.thread_pool import BoundedCalls

LIMIT_S = 0.02


def alive() -> list[threading.Thread]:
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


def test_what_is_done_in_time_is_waited_for(calls: BoundedCalls) -> None:
    said: list[str] = []
    for text in "abc":
        calls.make(lambda text=text: said.append(text))  # type: ignore[misc]
    assert said == ["a", "b", "c"]


def test_what_did_not_get_a_processor_is_waited_for(calls: BoundedCalls) -> None:
    """A call that sleeps stands for one that a busy machine lets wait."""
    said: list[str] = []

    def work() -> None:
        time.sleep(5 * LIMIT_S)
        said.append("done")

    calls.make(work)
    assert said == ["done"]


def test_what_takes_longer_is_left_and_so_is_a_second_one_and_no_third(
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
    deadline = time.monotonic() + 10
    while calls._threads.is_lost and time.monotonic() < deadline:
        time.sleep(0.001)
    calls.make(lambda: said.append("again"))
    assert said[1:] == ["again"]

    calls.close()
    while (threads := alive()) and time.monotonic() < deadline:
        time.sleep(0.001)
    assert threads == []
