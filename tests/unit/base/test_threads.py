from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from trtspec.base.threads import in_threads


def test_every_item_once_and_no_advance_lost() -> None:
    done: list[int] = []
    told: list[int] = []

    def work(item: int) -> int:
        done.append(item)
        return item

    in_threads(work, iter(range(1000)), told.append, threads=4)
    assert sorted(done) == sorted(told) == list(range(1000))


def test_several_at_once_and_no_more_asked_for_than_are_worked_on() -> None:
    """The barrier lets nobody on before four threads are at work."""
    barrier, asked = threading.Barrier(4, timeout=120), 0

    def items() -> Iterator[int]:
        nonlocal asked
        for item in range(4):
            asked += 1
            yield item

    def work(item: int) -> int:
        barrier.wait()
        return asked

    most: list[int] = []
    in_threads(work, items(), most.append, threads=4)
    assert most == [4, 4, 4, 4]


@pytest.mark.parametrize("broken", ["work", "items", "advance"])
def test_the_first_error_ends_all(broken: str) -> None:
    started = 0

    def items() -> Iterator[int]:
        for item in range(100_000):
            if broken == "items" and item == 50:
                raise KeyError("items")
            yield item

    def work(item: int) -> int:
        nonlocal started
        started += 1
        if broken == "work" and item == 50:
            raise KeyError("work")
        return item

    def advance(item: int) -> None:
        if broken == "advance" and item == 50:
            raise KeyError("advance")

    with pytest.raises(KeyError, match=broken):
        in_threads(work, items(), advance, threads=4)
    assert started < 100_000


def test_the_same_of_two_failures_is_raised_whichever_thread_is_faster() -> None:
    later = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            assert later.wait(120)  # item 1 has failed before item 0 does
            raise KeyError("first")
        later.set()
        raise KeyError("later")

    with pytest.raises(KeyError, match="first"):
        in_threads(work, range(2), lambda _: None, threads=2)
