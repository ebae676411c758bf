"""When to try another K than the best one, at one load, so that estimates stay alive. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence

FIRST = 4
"""The K that is used while nothing is known."""
ROUNDS = 3
"""How many rounds a probe takes, and at least two of each completion: the first tells no time."""
BURST = 12
"""How many tokens of the target alone each completion decodes in a probe of K = 0."""
SHARE = 0.01
"""The share of the time that probes may lose."""
GAP = 6
"""How many rounds with the K in use are between two probes, and at least two of each completion."""
HOPE = 2.0
"""How much more goodput is hoped for of a K for each standard deviation of doubt."""
DOUBT = 7.0
"""How much more probes may lose for each standard deviation of doubt about what they try."""
MOST_OF_ALL = 0.1
"""The share of the time that probes may take: where many run, they disturb one another when K changes."""
LEAST_S, MOST_S = 0.5, 30.0
"""The seconds between two probes, at least and at most."""


class Probes:
    """Says which K to try, if any: a draft and none at first, then another than the best one now and then.

    A probe is for all completions, since what a round takes depends on what the others do. `first` is the K
    to begin with.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._untried: list[int] = []
        self._length, self._left, self._gap = 0, 0, 0
        self._due = 0.0
        self._turn = 0

    def take(
        self,
        load: int,
        now: float,
        best: int,
        tokens: Sequence[float],
        seconds: Sequence[float],
        doubt: Callable[[], Sequence[float]],
    ) -> int | None:
        """Returns the K of a probe for one round or burst of a completion; None for no probe.

        `best` is the K that is used otherwise; `tokens` and `seconds` are what a round of each K from 0 is
        expected to give and to take, and `doubt()` by which share the latter may be wrong. `seconds` is empty
        as long as nothing is known.
        """
        if not self._left:
            if self._gap:
                self._gap -= 1
                return None
            if not self._untried and not self._plan(now, best, tokens, seconds, doubt):
                return None
            self._length = self._untried.pop(0)
            self._left = load * (_rounds(load) if self._length else 1)
            self._gap = max(GAP, 2 * load)
        self._left -= 1
        return self._length

    def _plan(
        self,
        now: float,
        best: int,
        tokens: Sequence[float],
        seconds: Sequence[float],
        doubt: Callable[[], Sequence[float]],
    ) -> bool:
        """Notes what to try now, if anything; at first the K in use too, since others are measured by it."""
        if now < self._due:
            return False
        if not seconds:
            self._untried, self._due = [best, 0 if best else self._first], now + LEAST_S
        else:
            doubts = doubt()
            self._untried = [self._other(best, tokens, seconds, doubts)]
            self._due = now + _pause(self._untried[0], best, tokens, seconds, doubts)
        return True

    def _other(
        self, best: int, tokens: Sequence[float], seconds: Sequence[float], doubt: Sequence[float]
    ) -> int:
        """Returns the most promising other draft; in turn with one token more, none, and one token less.

        Only the first where drafts do not pay. The greater the doubt, the more is hoped for: a bad first
        trial must not be the last.
        """

        def hoped(length: int) -> float:
            return tokens[length] / seconds[length] * (1 + HOPE * doubt[length])

        longest = len(tokens) - 1
        others = [length for length in range(1, longest + 1) if length != best]
        promising = max(others, key=hoped, default=0)
        if best == 0:
            return promising
        self._turn += 1
        return (promising, best + 1 if best < longest else promising, 0, best - 1)[self._turn % 4]


def _pause(
    length: int, best: int, tokens: Sequence[float], seconds: Sequence[float], doubt: Sequence[float]
) -> float:
    """Returns the seconds from this probe to the next, by what it takes and is expected to lose."""
    number = ROUNDS if length else BURST
    lost = seconds[length] - tokens[length] * seconds[best] / tokens[best]
    share = SHARE * (1 + DOUBT * doubt[length])
    return min(max(number * lost / share, number * seconds[length] / MOST_OF_ALL, LEAST_S), MOST_S)


def _rounds(load: int) -> int:
    return max(2, ROUNDS // load)
