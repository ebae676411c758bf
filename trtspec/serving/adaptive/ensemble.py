"""Tracks what all running completions do, and since when that has not changed. No I/O, no clock."""

from __future__ import annotations

ALIKE = 0.25
"""By how much the mean K of what runs may differ from the K of a round whose time counts."""
KEEP = 0.95
"""How much each step of all makes the steps before it count, for the share of texts that have drafts."""


class Ensemble:
    """Counts what runs.

    `begin` and `end` are for texts that have a draft whose length is chosen: the others run alike with any K.
    An engine's steps serve all at once, so what a round takes tells of its K while all have that K. Times are
    in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._running, self._drafted = 0, 0
        self._offered = 1.0
        self._present, self._idle_since, self._idle_s = 0, 0.0, 0.0
        self._common: int | None = 0
        self._since = 0.0
        self._leader: object = None
        self._left = 0

    def enter(self, now: float) -> None:
        """Notes that a round or burst of any text begins."""
        if not self._present:
            self._idle_s += now - self._idle_since
        self._present += 1

    def leave(self, now: float) -> None:
        """Notes that it is over."""
        self._present -= 1
        self._idle_since = now

    def worked(self, now: float) -> float:
        """Returns the seconds in which anything ran."""
        return (now if self._present else self._idle_since) - self._idle_s

    def begin(self, length: int, now: float) -> None:
        """Notes that a round with a draft of `length` tokens, or a burst with 0, begins."""
        self._count(1, length, now)

    def end(self, who: object, length: int, now: float) -> None:
        """Notes that it has ended, in whatever way; `who` as in `burst`."""
        self._count(-1, -length, now)
        if who is self._leader:
            self._leader, self._left = None, 0

    @property
    def mean_length(self) -> float:
        """The mean K of what runs."""
        return self._drafted / max(self._running, 1)

    def share(self, load: int) -> float:
        """Returns the share of `load` texts that has a draft, as one of them has, by the last steps."""
        return (1 + (load - 1) * self._offered) / load

    def stepped(self, number: int, is_offered: bool, load: int) -> None:
        """Notes so many steps of one of `load` texts, and whether it had a draft that could be longer."""
        keep = KEEP ** (number / load)
        self._offered = self._offered * keep + is_offered * (1 - keep)

    def has_had(self, length: int, since: float) -> bool:
        """Says whether all, or nearly all, have had this K since then."""
        return self._common == length and self._since <= since

    def burst(self, who: object, number: int) -> int:
        """Returns how many tokens, about `number`, a burst of `who` that begins now is to have.

        Bursts of all end together, where K may change: rounds beside bursts take longer than either. Whoever
        began first leads, and tells how many tokens are left: a step gives one to each.
        """
        if self._left < number / 4:
            self._leader, self._left = who, number
        return min(self._left, number)

    @property
    def is_led(self) -> bool:
        """Says whether bursts have tokens left, so that this is not where K changes for all."""
        return self._left > 0

    def told(self, who: object, number: int) -> None:
        """Notes so many tokens of the burst of `who`."""
        if who is self._leader:
            self._left -= number

    def _count(self, running: int, drafted: int, now: float) -> None:
        self._running += running
        self._drafted += drafted
        mean = self.mean_length
        length = round(mean)
        common = length if abs(mean - length) <= ALIKE else None
        if common != self._common:
            self._common, self._since = common, now
