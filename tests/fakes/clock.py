"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Clock:
    """What the loop takes for the time, moved by hand on top of what really passes."""

    def __init__(self) -> None:
        self.seconds = 0.0


class HandClock:
    """The module `time` of a test that says how many seconds have passed."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    perf_counter = process_time = monotonic


async def until(happens: Callable[[], object]) -> None:
    """Lets the loop turn until it does."""
    while not happens():
        await asyncio.sleep(0)
