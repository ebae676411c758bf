"""The circuit breaker of the draft engine, which decides when to use it after failures. No I/O, no clock."""

from __future__ import annotations

MAX_FAILURES = 3
FIRST_REST_S, LONGEST_REST_S = 1.0, 60.0


class CircuitBreaker:
    """Rests the draft engine after `MAX_FAILURES` consecutive failures.

    After a rest it allows one attempt. Success ends the rests; another failure doubles the next rest, up to
    `LONGEST_REST_S`. `now` is in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._failures = 0
        self._rest_s = FIRST_REST_S
        self._until = 0.0
        self._is_trying = False

    def is_closed(self) -> bool:
        """Says whether the draft engine is in use: neither at rest nor in the attempt that follows."""
        return self._failures < MAX_FAILURES

    def is_resting(self, now: float) -> bool:
        """Says whether the draft engine must not be asked now."""
        return self._failures >= MAX_FAILURES and (self._is_trying or now < self._until)

    def may_try(self, now: float) -> bool:
        """Says whether to ask the draft engine now. The caller then reports the result by a method below."""
        if self.is_resting(now):
            return False
        self._is_trying = not self.is_closed()
        return True

    def succeeded(self) -> None:
        """Notes an answer, which ends a rest."""
        self._failures, self._rest_s, self._is_trying = 0, FIRST_REST_S, False

    def failed(self, now: float) -> None:
        """Notes a failure, which may begin a rest or lengthen it."""
        was_trying, self._is_trying = self._is_trying, False
        self._failures += 1
        if was_trying:
            self._rest_s = min(2 * self._rest_s, LONGEST_REST_S)
        if self._failures == MAX_FAILURES or was_trying:
            self._until = now + self._rest_s

    def left(self) -> None:
        """Notes an attempt without a result that counts, for example because the client left."""
        self._is_trying = False
