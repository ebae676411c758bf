"""Runs work in threads, which helps reads, writes and numpy: they release Python's global lock."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
THREADS = min(8, os.cpu_count() or 1)


def in_threads(
    work: Callable[[T], int], items: Iterable[T], advance: Callable[[int], None], threads: int = THREADS
) -> None:
    """Calls `work` with each item, in `threads` threads, and `advance` with each result, one call at a time.

    The next item is taken when a thread is free. The first exception stops all threads and is raised.
    """
    left, lock, stopped = iter(items), Lock(), False

    def run() -> None:
        nonlocal stopped
        try:
            while not stopped:
                with lock:
                    item = next(left)
                done = work(item)
                with lock:
                    advance(done)
        except StopIteration:
            return
        except BaseException:
            stopped = True
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            for future in [pool.submit(run) for _ in range(threads)]:
                future.result()
        finally:
            stopped = True
