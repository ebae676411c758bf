"""When to try another K than the best one, at one load, so that estimates stay alive. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

FIRST = 4
"""The K before any measurement."""
ROUNDS = 3
"""How many rounds of each completion a probe takes at most: the first tells no time."""
BURST = 12
"""How many tokens of the target alone each completion decodes in a probe of K = 0."""
SHARE = 0.004
"""The share of the time that probes may lose."""
GAP = 6
"""How many rounds with the K in use are between two probes, and at least two of each completion."""
HOPE = 2.0
"""The bonus in goodput of a K for each standard deviation of uncertainty."""
DOUBT = 6.0
"""How much more a probe may lose for each standard deviation of uncertainty about its K."""
ALL = 0.9
"""From this share of texts with drafts on, all texts count as having drafts."""
MOST_OF_ALL = 0.1
"""The share of the time that probes may take: where many run, they disturb one another when K changes."""
LEAST_S, MOST_S = 0.5, 30.0
"""The seconds between two probes, at least and at most."""


@dataclass(frozen=True, slots=True)
class LoadOutlook:
    """The estimates for one load: which K is best, and what a round of K = 0, 1, … yields and costs."""

    best: int
    """The best K."""
    tokens: Callable[[], Sequence[float]]
    """Returns the expected number of tokens of a round for each K."""
    seconds: Sequence[float]
    """The measured seconds of a round for each K; empty as long as nothing is known."""
    doubt: Callable[[], Sequence[float]]
    """Returns the relative error of `seconds`, for each K."""
    share: float = 1.0
    """The share of the texts that have a draft."""

    def takes(self, length: int) -> float:
        """Returns the seconds that a probe of this K is expected to take: each text with a draft is in it."""
        return (ROUNDS if length else BURST) * self.seconds[length] / self.share

    def lost(self, length: int, seconds: float) -> float:
        """Returns by how much a probe of this K, which took that long, is slower than the best K.

        Where all have drafts, that may be more than its rounds: an engine first reads what the target said
        alone. Where a few have some, the probe waits for them, and loses nothing by that.
        """
        tokens = self.tokens()
        steps = (self.takes(length) if self.share > ALL else seconds) / self.seconds[length]
        return seconds - steps * tokens[length] * self.seconds[self.best] / tokens[self.best]


class ProbePolicy:
    """Says which K to try, if any: a draft and none at first, then another than the best one now and then.

    A probe is for all completions, since what a round takes depends on what the others do. `first` is the K
    to begin with.
    """

    def __init__(self, first: int) -> None:
        self._first = first
        self._untried: list[int] = []
        self._length, self._left, self._wanted, self._gap = 0, 0, 0, 0
        self._due = 0.0
        self._began: float | None = None
        self._turn = 0

    def take(self, load: int, may_begin: bool, now: float, outlook: LoadOutlook) -> int | None:
        """Returns the K of a probe for one round or burst of a completion; None for no probe.

        One is under way until enough was measured; without `may_begin` none begins. `now` counts no seconds
        in which nothing ran, which would be saved up for probes.
        """
        if not self._left:
            if self._began is not None and outlook.seconds:
                self._rest(now - self._began, now, outlook)
            if self._gap:
                self._gap -= 1
                return None
            if not may_begin or not (self._untried or self._plan(now, outlook)):
                return None
            self._length = self._untried.pop(0)
            self._left = load * (ROUNDS if self._length else 1)
            self._wanted, self._began = max(load, ROUNDS - 1), now
            self._gap = max(GAP, 2 * load)
        self._left -= 1
        return self._length

    def tried(self, length: int) -> None:
        """Notes that a round or burst of this K told its time; one of each completion is enough."""
        if self._left and length == self._length:
            self._wanted -= 1
            self._left *= self._wanted > 0

    def _rest(self, took: float, now: float, outlook: LoadOutlook) -> None:
        """Puts the next probe off by what this one has cost, now that it is over."""
        lost = outlook.lost(self._length, took)
        pause = lost / _share(outlook.doubt()[self._length])
        self._due, self._began = max(self._due, now + min(pause, MOST_S)), None

    def _plan(self, now: float, outlook: LoadOutlook) -> bool:
        """Notes what to try now, if anything; at first the K in use too, since others are measured by it."""
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
        """Returns the most promising other draft; in turn with one token more, none, and one token less.

        Only the first where drafts do not pay. The greater the doubt, the more is hoped for: a bad first
        trial must not be the last.
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
    """Returns the seconds from this probe to the next, by what it takes and is expected to lose."""
    seconds = outlook.takes(length)
    lost = outlook.lost(length, seconds)
    return min(max(lost / _share(doubt[length]), seconds / MOST_OF_ALL, LEAST_S), MOST_S)


def _share(doubt: float) -> float:
    """Returns the share of the time that probes of a K may lose."""
    return SHARE * (1 + DOUBT * doubt)
