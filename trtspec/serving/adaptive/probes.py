"""Decides when to try another K than the best one, at one load, so that estimates stay current. No I/O, no
clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

FIRST = 4
"""The K before any measurement."""
ROUNDS = 3
"""The number of rounds of each completion in a probe, at most twice as many. The first is not measured."""
BURST = 12
"""The number of tokens that each completion decodes in a probe of K = 0."""
SHARE = 0.004
"""The share of the time that probes may lose."""
GAP = 6
"""The number of rounds with the K in use between two probes; at least two of each completion."""
HOPE = 2.0
"""The relative bonus in a K's goodput for each unit of its relative standard deviation."""
DOUBT = 6.0
"""The relative increase of `SHARE` for each unit of a K's relative standard deviation."""
ALL = 0.9
"""If a larger share of the sequences has drafts, all count as having drafts."""
MOST_OF_ALL = 0.1
"""The share of the time that probes may take: at a high load completions disturb one another as K changes."""
LEAST_S, MOST_S = 0.5, 30.0
"""The seconds between two probes, at least and at most."""


class LoadOutlook(NamedTuple):
    """The estimates for one load."""

    best: int
    """The best K."""
    tokens: Callable[[], Sequence[float]]
    """Returns the expected number of tokens of a round for each K."""
    seconds: Sequence[float]
    """The measured seconds of a round for each K; empty without measurements."""
    doubt: Callable[[], Sequence[float]]
    """Returns the relative standard deviation of `seconds` for each K."""
    share: float = 1.0
    """The share of the sequences that have drafts."""

    def takes(self, length: int) -> float:
        """Returns the expected seconds of a probe of this K. Each sequence with drafts takes part in it."""
        return (ROUNDS if length else BURST) * self.seconds[length] / self.share

    def lost(self, length: int, seconds: float) -> float:
        """Returns the seconds that a probe of this K, which took `seconds`, lost against the best K.

        If all sequences have drafts, all of its time counts, which may be more than its rounds: a draft
        engine first computes the tokens of a burst. If few have drafts, the probe waits for them without a
        loss, so only its rounds count.
        """
        tokens = self.tokens()
        steps = (self.takes(length) if self.share > ALL else seconds) / self.seconds[length]
        return seconds - steps * tokens[length] * self.seconds[self.best] / tokens[self.best]


class ProbePolicy:
    """Chooses which K to try, if any: at first the K `first` and 0, then now and then another than the best.

    All completions take part in a probe, since the time of a round depends on the K of all.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._untried: list[int] = []
        self._length, self._left, self._extra, self._unmeasured, self._gap = 0, 0, 0, 0, 0
        self._due = 0.0
        self._began: float | None = None
        self._turn = 0

    def take(self, load: int, may_begin: bool, now: float, outlook: LoadOutlook) -> int | None:
        """Returns the K of a probe for one round or burst of a completion; None for no probe.

        A probe lasts until enough rounds were measured. Without `may_begin` none begins. `now` must not count
        idle seconds, which would be saved up for probes.
        """
        if not self._left:
            if self._began is not None and self._length < len(outlook.seconds):
                self._delay_next(now - self._began, now, outlook)
            if self._gap:
                self._gap -= 1
                return None
            if not may_begin or not (self._untried or self._plan(now, outlook)):
                return None
            self._length = self._untried.pop(0)
            self._left = load * (ROUNDS if self._length else 1)
            self._extra = self._left
            self._unmeasured, self._began = max(load, ROUNDS - 1), now
            self._gap = max(GAP, 2 * load)
        self._left -= 1
        return self._length

    def is_waiting(self, now: float) -> bool:
        """Says whether a probe is to begin as soon as the bursts of all have ended."""
        return not (self._left or self._gap) and (bool(self._untried) or now >= self._due)

    def wait(self, length: int) -> bool:
        """Adds a round to a probe of this K for one beside drafts that are behind; False if it has enough."""
        if not self._left or length != self._length or not self._extra:
            return False
        self._left += 1
        self._extra -= 1
        return True

    def tried(self, length: int) -> None:
        """Notes that a round or burst of this K was measured. One of each completion is enough."""
        if self._left and length == self._length:
            self._unmeasured -= 1
            self._left *= self._unmeasured > 0

    def _delay_next(self, took: float, now: float, outlook: LoadOutlook) -> None:
        """Delays the next probe in proportion to the time that this one has lost."""
        lost = outlook.lost(self._length, took)
        pause = lost / _share(outlook.doubt()[self._length])
        self._due, self._began = max(self._due, now + min(pause, MOST_S)), None

    def _plan(self, now: float, outlook: LoadOutlook) -> bool:
        """Plans the next probes, and says whether there are any.

        The first ones include the K in use, which the others are compared with.
        """
        if now < self._due:
            return False
        if not outlook.seconds:
            best = outlook.best
            self._untried, self._due = [best, 0 if best else self._first], now + LEAST_S
        else:
            doubt = outlook.doubt()
            self._untried = [self._other(outlook, doubt)]
            self._due = now + _pause(self._untried[0], outlook, doubt)
        return True

    def _other(self, outlook: LoadOutlook, doubt: Sequence[float]) -> int:
        """Returns in turn the most promising other K, one token more than the best, 0, and one token less.

        If the best K is 0, it returns only the first. An uncertain K is more promising, so that a bad first
        trial is not the last.
        """
        best, tokens = outlook.best, outlook.tokens()

        def hoped(length: int) -> float:
            return tokens[length] / outlook.seconds[length] * (1 + HOPE * doubt[length])

        longest = len(tokens) - 1
        others = [length for length in range(1, longest + 1) if length != best]
        promising = max(others, key=hoped, default=0)
        if best == 0:
            return promising
        self._turn += 1
        return (promising, best + 1 if best < longest else promising, 0, best - 1)[self._turn % 4]


def _pause(length: int, outlook: LoadOutlook, doubt: Sequence[float]) -> float:
    """Returns the seconds from this probe to the next, by its expected time and loss."""
    seconds = outlook.takes(length)
    lost = outlook.lost(length, seconds)
    return min(max(lost / _share(doubt[length]), seconds / MOST_OF_ALL, LEAST_S), MOST_S)


def _share(doubt: float) -> float:
    """Returns the share of the time that probes of a K with this uncertainty may lose."""
    return SHARE * (1 + DOUBT * doubt)
