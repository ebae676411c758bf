"""Runs work in threads, which helps reads, writes and numpy: they release Python's global lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
THREADS = min(8, os.cpu_count() or 1)


def in_threads(
    work: Callable[[T], int], items: Iterable[T], advance: Callable[[int], None], threads: int = THREADS
) -> None:
    """Calls `work` with each item, in `threads` threads, and `advance` with each result, one at a time.

    The next item is taken when a thread is free. An item that fails stops all threads. Its exception is
    raised, and of several that of the first item, whichever thread was faster.
    """
    left, lock, numbers = iter(items), Lock(), count()
    failures: dict[int, BaseException] = {}
    stopped = False

    def run() -> None:
        while not (stopped or failures):
            with lock:
                number = next(numbers)
                try:
                    item = next(left)
                except StopIteration:
                    return
                except BaseException as failure:
                    failures[number] = failure
                    return
            try:
                done = work(item)
                with lock:
                    advance(done)
            except BaseException as failure:
                failures[number] = failure

    with ThreadPoolExecutor(threads) as pool:
        try:
            for future in [pool.submit(run) for _ in range(threads)]:
                future.result()
        finally:
            stopped = True
    if failures:
        raise failures[min(failures)]
