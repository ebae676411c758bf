"""Decides which completions run and which wait: the bounds, the order, and the queue for a slot.

More completions than an engine's batch holds would evict one another from its KV cache, and each round would
compute its whole sequence again. So they wait here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from trtspec.serving.errors import Busy, TimedOut


@dataclass(frozen=True, slots=True)
class ServingBounds:
    """The bounds of a deployment. Times are in seconds."""

    max_places: int
    """The largest number of completions that run at once."""
    kv_tokens: int | None = None
    """The largest number of tokens of all running sequences together. None if it is unknown."""
    max_queue_size: int = 256
    """The largest number of further completions that wait for a slot."""
    max_queue_delay_s: float = 300.0
    """The longest time that a completion waits for a slot."""
    default_timeout_s: float = 600.0
    """The timeout of a completion whose request names none."""
    draft_timeout_s: float = 5.0
    """The longest time that a round waits for its draft."""
    target_timeout_s: float = 120.0
    """A target that has requests and makes no progress for this long is declared lost."""
    draft_schedule: Mapping[int, int] = field(default_factory=dict)
    """The largest K from so many running completions on; empty if their number does not bound it."""


MAX_PASSED = 8
"""The largest number of later completions that may overtake one whose sequence does not fit yet."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A completion that asks to run. Two tickets are never equal."""

    tokens: int
    """The largest length of its sequence in the KV cache."""
    passed: int = 0
    """The number of completions that came later and ran first."""


class Admission:
    """Lets at most `max_places` completions run, with `kv_tokens` tokens in all, and `max_queue_size` wait.

    The queue is first come, first served, with one exception: a completion overtakes a longer one that the KV
    cache has no room for yet. After `MAX_PASSED` have overtaken it, all wait behind it. A sequence larger
    than the whole cache runs alone. With `kv_tokens` None tokens are not counted. It has no I/O and no clock.
    """

    def __init__(self, max_places: int, kv_tokens: int | None, max_queue_size: int) -> None:
        self._max_places, self._kv_tokens, self._max_queue_size = max_places, kv_tokens, max_queue_size
        self._running: set[Ticket] = set()
        self._queue: deque[Ticket] = deque()
        self._tokens = 0

    @property
    def running(self) -> int:
        return len(self._running)

    @property
    def waiting(self) -> int:
        return len(self._queue)

    @property
    def is_full(self) -> bool:
        """Says whether the next ticket is turned away, unless it can run at once."""
        return len(self._queue) >= self._max_queue_size and len(self._running) >= self._max_places

    def arrive(self, ticket: Ticket) -> bool | None:
        """Returns True when the ticket may run at once, False when it waits, None when it is turned away."""
        # A ticket in the queue starts only when another leaves, so `_start` is not needed here.
        is_held = bool(self._queue) and self._queue[0].passed >= MAX_PASSED
        if not is_held and len(self._running) < self._max_places and self._fits(ticket):
            self._run(ticket, self._queue)
            return True
        if len(self._queue) >= self._max_queue_size:
            return None
        self._queue.append(ticket)
        return False

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Removes a ticket, running or waiting; returns those that may run now, in the order of arrival."""
        if ticket in self._running:
            self._running.remove(ticket)
            self._tokens -= ticket.tokens
        elif ticket in self._queue:
            self._queue.remove(ticket)
        return self._start()

    def _start(self) -> list[Ticket]:
        started: list[Ticket] = []
        passed: list[Ticket] = []
        for ticket in self._queue:
            if len(self._running) >= self._max_places:
                break
            if self._fits(ticket):
                self._run(ticket, passed)
                started.append(ticket)
            else:
                passed.append(ticket)
            # A ticket that overtakes any other overtakes the first one too.
            if passed and passed[0].passed >= MAX_PASSED:
                break
        for ticket in started:
            self._queue.remove(ticket)
        return started

    def _run(self, ticket: Ticket, passed: Iterable[Ticket]) -> None:
        self._running.add(ticket)
        self._tokens += ticket.tokens
        for other in passed:
            other.passed += 1

    def _fits(self, ticket: Ticket) -> bool:
        if self._kv_tokens is None or not self._running:
            return True
        return self._tokens + ticket.tokens <= self._kv_tokens


@dataclass(frozen=True, slots=True)
class _Wait:
    """The wait of one completion, from `since` to `deadline` at most, on the loop's clock."""

    since: float
    deadline: float
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
            if wait.deadline <= now and not wait.admitted.done():
                wait.admitted.set_exception(TimeoutError())

    async def _wait(self, ticket: Ticket, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        now, delay = loop.time(), self._bounds.max_queue_delay_s
        wait = _Wait(now, min(deadline, now + delay), loop.create_future())
        self._waiting[ticket] = wait
        try:
            await wait.admitted
        except TimeoutError:
            if wait.deadline == deadline:
                raise TimedOut("in the queue") from None
            raise Busy(f"no slot became free within {delay:g} s") from None
        finally:
            self._waiting.pop(ticket, None)

    def _full(self) -> Busy:
        return Busy(f"{self.running} completions are running and {self.waiting} wait already")
