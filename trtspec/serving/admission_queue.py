"""The queue in which completions wait for a slot; `Admission` orders it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from trtspec.serving.admission import Admission, Ticket
from trtspec.serving.bounds import ServingBounds
from trtspec.serving.errors import Busy, TimedOut


@dataclass(frozen=True, slots=True)
class _Wait:
    """The wait of one completion. Times are on the loop's clock."""

    since: float
    """The time when the wait began."""
    until: float
    """The time when the wait ends at the latest."""
    admitted: asyncio.Future[None]


class AdmissionQueue:
    """Admits completions in the order of `Admission`. It is used on the thread of one asyncio loop.

    `reap` must be called periodically: it refuses completions that have waited for too long.
    """

    def __init__(self, bounds: ServingBounds) -> None:
        self._bounds = bounds
        self._admission = Admission(bounds.max_places, bounds.kv_tokens, bounds.max_queue_size)
        self._waiting: dict[Ticket, _Wait] = {}
        self._closed: str | None = None

    @property
    def running(self) -> int:
        return self._admission.running

    @property
    def waiting(self) -> int:
        return self._admission.waiting

    def check(self) -> None:
        """Raises `Busy` if a completion would be refused, before any work is done for it."""
        if self._closed is not None:
            raise Busy(self._closed)
        if self._admission.is_full:
            raise self._full()

    @asynccontextmanager
    async def slot(self, tokens: int, deadline: float) -> AsyncGenerator[None, None]:
        """Waits for a slot for a sequence of at most `tokens` tokens, and holds it for the block.

        `deadline` is on the loop's clock. Raises `Busy` where the queue is full or the wait is too long, and
        `TimedOut` when the deadline passes first.
        """
        self.check()
        ticket = Ticket(tokens)
        may_run = self._admission.arrive(ticket)
        if may_run is None:
            raise self._full()
        try:
            if not may_run:
                await self._wait(ticket, deadline)
            yield
        finally:
            for other in self._admission.leave(ticket):
                wait = self._waiting.pop(other)
                if not wait.admitted.done():
                    wait.admitted.set_result(None)

    def close(self, why: str) -> None:
        """Refuses waiting and future completions with `Busy` and `why`."""
        self._closed = why
        for wait in self._waiting.values():
            if not wait.admitted.done():
                wait.admitted.set_exception(Busy(why))

    def longest_wait(self, now: float) -> float:
        """Returns the seconds that the longest waiting completion has waited, 0.0 without one."""
        return max((now - wait.since for wait in self._waiting.values()), default=0.0)

    def reap(self, now: float) -> None:
        """Refuses the completions whose wait is over."""
        for wait in self._waiting.values():
            if wait.until <= now and not wait.admitted.done():
                wait.admitted.set_exception(TimeoutError())

    async def _wait(self, ticket: Ticket, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        now, delay = loop.time(), self._bounds.max_queue_delay_s
        wait = _Wait(now, min(deadline, now + delay), loop.create_future())
        self._waiting[ticket] = wait
        try:
            await wait.admitted
        except TimeoutError:
            if wait.until == deadline:
                raise TimedOut("in the queue") from None
            raise Busy(f"no slot became free within {delay:g} s") from None
        finally:
            self._waiting.pop(ticket, None)

    def _full(self) -> Busy:
        return Busy(f"{self.running} completions are running and {self.waiting} wait already")
