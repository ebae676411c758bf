"""When to try another K than the best one, at one load, so that estimates stay alive. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence

FIRST = 4
"""The K that is used while nothing is known."""
ROUNDS = 3
"""How many rounds of each completion a probe takes."""
BURST = 8
"""How many tokens of the target alone stand for a round in a probe of K = 0."""
SHARE = 0.01
"""The share of the time that probes may lose."""
LEAST_S, MOST_S = 0.5, 30.0
"""The seconds between two probes, at least and at most."""


class Probes:
    """Says which K to try, if any: each of a few lengths at first, later one beside the best now and then.

    A probe is for all completions, since what a round takes depends on what the others do.
    """

    def __init__(self, longest: int) -> None:
        self._first = list(dict.fromkeys((min(FIRST, longest), 0, longest, 1)))
        self._untried = list(self._first)
        self._length, self._left = 0, 0
        self._due = 0.0
        self._turn = 0

    def take(
        self, load: int, now: float, best: int, tokens: Sequence[float], seconds: Sequence[float]
    ) -> int | None:
        """Returns the K of a probe for one round or burst of a completion; None for no probe.

        `best` is the K that is used otherwise; `tokens` and `seconds` are what a round of each K from 0 is
        expected to give and to take. `seconds` is empty as long as it is not known.
        """
        if not self._left:
            if not self._untried:
                if now < self._due:
                    return None
                if seconds:
                    self._untried = [self._other(best, tokens, seconds)]
                    self._due = now + _pause(self._untried[0], best, tokens, seconds)
                else:
                    self._untried, self._due = list(self._first), now + LEAST_S
            self._length, self._left = self._untried.pop(0), ROUNDS * load
        self._left -= 1
        return min(self._length, len(tokens) - 1)

    def _other(self, best: int, tokens: Sequence[float], seconds: Sequence[float]) -> int:
        """Returns the most promising draft where there is none now, else 0 and the neighbours in turn."""
        longest = len(tokens) - 1
        if best == 0:
            return max(range(1, longest + 1), key=lambda length: tokens[length] / seconds[length])
        self._turn += 1
        return (0, min(best + 1, longest), best - 1)[self._turn % 3]


def _pause(length: int, best: int, tokens: Sequence[float], seconds: Sequence[float]) -> float:
    """Returns the seconds from this probe to the next, by what it is expected to lose."""
    lost = ROUNDS * (seconds[length] - tokens[length] * seconds[best] / tokens[best])
    return min(max((lost if length else BURST * lost) / SHARE, LEAST_S), MOST_S)
