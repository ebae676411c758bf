"""Who is at work and who waits: places, a bounded queue, and who comes next. Pure.

More completions than an engine runs at once would push one another out of its KV cache, so that each round
computed its whole text again; they wait here instead.
"""

from __future__ import annotations

from dataclasses import dataclass

MAX_PASSED = 8
"""How many that came later may go before one whose text does not fit yet."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One completion, by its identity; `tokens` is what its text may come to in the KV cache.

    `passed` counts those that came later and were at work before it.
    """

    tokens: int
    passed: int = 0


class Admission:
    """At most `max_places` at work, with `kv_tokens` tokens in all, and `max_queue_size` in line behind them.

    The line is first come, first served, except that a short text goes before a long one for which there is
    no room in the KV cache yet: of those behind it at most `MAX_PASSED` do, and then all wait with it. A text
    larger than the whole cache works alone.
    """

    def __init__(self, max_places: int, kv_tokens: int | None, max_queue_size: int) -> None:
        self._max_places, self._kv_tokens, self._max_queue_size = max_places, kv_tokens, max_queue_size
        self._working: set[Ticket] = set()
        self._line: list[Ticket] = []
        self._tokens = 0

    @property
    def working(self) -> int:
        return len(self._working)

    @property
    def waiting(self) -> int:
        return len(self._line)

    @property
    def is_full(self) -> bool:
        """Whether the next to come is turned away, unless it can work at once."""
        return len(self._line) >= self._max_queue_size and len(self._working) >= self._max_places

    def arrive(self, ticket: Ticket) -> bool | None:
        """True when it may work at once, False when it waits, None when it is turned away."""
        self._line.append(ticket)
        self._start()
        if ticket in self._working:
            return True
        if len(self._line) > self._max_queue_size:
            self._line.pop()
            return None
        return False

    def leave(self, ticket: Ticket) -> list[Ticket]:
        """Ends one, at work or waiting; those that may work now, in the order in which they came."""
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
                self._working.add(ticket)
                self._tokens += ticket.tokens
                started.append(ticket)
                for other in passed:
                    other.passed += 1
            else:
                passed.append(ticket)
            if any(other.passed >= MAX_PASSED for other in passed):
                break
        if started:
            self._line = [ticket for ticket in self._line if ticket not in self._working]
        return started

    def _fits(self, ticket: Ticket) -> bool:
        if self._kv_tokens is None or not self._working:
            return True
        return self._tokens + ticket.tokens <= self._kv_tokens
