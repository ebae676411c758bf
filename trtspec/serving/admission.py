"""Decides which completions run and which wait: a bounded queue, and which is next. No I/O, no clock.

More completions than an engine's batch holds would evict one another from its KV cache, and each round would
compute its whole sequence again. So they wait here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

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
    than the whole cache runs alone. With `kv_tokens` None tokens are not counted.
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
