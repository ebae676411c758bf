"""Which completions run and which wait: a bounded queue, and the rule of who comes next. No I/O, no clock.

More completions than an engine runs at once would push one another out of its KV cache, and each round would
compute its whole text again; so they wait here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MAX_PASSED = 8
"""The largest number of later completions that may overtake one whose text does not fit yet."""


@dataclass(slots=True, eq=False)
class Ticket:
    """A completion that asks to run, known by its identity."""

    tokens: int
    """The length that its text may reach in the KV cache."""
    passed: int = 0
    """The number of completions that came later and ran first."""


class Admission:
    """Lets at most `max_places` completions run, `kv_tokens` tokens in all, and `max_queue_size` wait.

    The queue is first come, first served, except that a short text overtakes a long one for which the KV
    cache has no room yet. At most `MAX_PASSED` texts overtake it; then all wait with it. A text larger than
    the whole cache runs alone. `kv_tokens` None stands for a cache of unknown size, which is not counted.
    """

    def __init__(self, max_places: int, kv_tokens: int | None, max_queue_size: int) -> None:
        self._max_places, self._kv_tokens, self._max_queue_size = max_places, kv_tokens, max_queue_size
        self._working: set[Ticket] = set()
        self._line: deque[Ticket] = deque()
        self._tokens = 0

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Says whether the next ticket is turned away, unless it can run at once."""
        return len(self._line) >= self._max_queue_size and len(self._working) >= self._max_places

    def arrive(self, ticket: Ticket) -> bool | None:
        """Returns True when the ticket may run at once, False when it waits, None when it is turned away."""
        # Those in line wait until somebody leaves: nothing else lets one of them run.
        is_held = bool(self._line) and self._line[0].passed >= MAX_PASSED
        if not is_held and len(self._working) < self._max_places and self._fits(ticket):
            self._run(ticket, self._line)
            return True
        if len(self._line) >= self._max_queue_size:
            return None
        self._line.append(ticket)
        return False

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Removes a ticket, running or waiting; returns those that may run now, in the order of arrival."""
        if ticket in self._working:
            self._working.remove(ticket)
            self._tokens -= ticket.tokens
        elif ticket in self._line:
            self._line.remove(ticket)
        return self._start()

    def _start(self) -> list[Ticket]:
        started: list[Ticket] = []
        passed: list[Ticket] = []
        for ticket in self._line:
            if len(self._working) >= self._max_places:
                break
            if self._fits(ticket):
                self._run(ticket, passed)
                started.append(ticket)
            else:
                passed.append(ticket)
            # Whoever passed another has passed the first in line too.
            if passed and passed[0].passed >= MAX_PASSED:
                break
        for ticket in started:
            self._line.remove(ticket)
        return started

    def _run(self, ticket: Ticket, passed: Iterable[Ticket]) -> None:
        self._working.add(ticket)
        self._tokens += ticket.tokens
        for other in passed:
            other.passed += 1

    def _fits(self, ticket: Ticket) -> bool:
        if self._kv_tokens is None or not self._working:
            return True
        return self._tokens + ticket.tokens <= self._kv_tokens
