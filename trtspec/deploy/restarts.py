"""When a server that has ended by itself is started again; pure."""

from __future__ import annotations

from trtspec.base.errors import ServerError, StuckError

_FIRST_S, _LONGEST_S = 1.0, 30.0
_STABLE_S = 60.0
# The most starts in a row of which none was ready.
_MOST = 5
_MOST_STUCK = 3


class Restarts:
    """Decides when a deployment starts again; a start that got stuck is repeated even without `is_wanted`."""

    def __init__(self, *, is_wanted: bool) -> None:
        self._is_wanted = is_wanted
        self._delay, self._in_vain, self._stuck = _FIRST_S, 0, 0

    def delay(self, error: ServerError, ready_s: float) -> float | None:
        """Returns the seconds to wait before the next start; None when there is to be none.

        `ready_s` is how many seconds the server was ready, below 0 if it never was.
        """
        if isinstance(error, StuckError):
            self._stuck += 1
            return 0.0 if self._stuck <= _MOST_STUCK else None
        self._stuck = 0
        self._in_vain = self._in_vain + 1 if ready_s < 0 else 0
        if not self._is_wanted or self._in_vain >= _MOST:
            return None
        if ready_s >= _STABLE_S:
            self._delay = _FIRST_S
        delay, self._delay = self._delay, min(2 * self._delay, _LONGEST_S)
        return delay
