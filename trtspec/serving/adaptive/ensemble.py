"""Tracks the K of all running completions, and since when it has not changed. No I/O, no clock."""

from __future__ import annotations

ALIKE = 0.25
"""The largest difference between the mean K of all and the K of a round whose time is measured."""
BEHIND = 0.1
"""The largest share of the completions whose drafts are behind while a probe is measured."""
KEEP = 0.95
"""The weight of the previous step in the share of sequences that have drafts, for a step of all."""


class Ensemble:
    """Tracks the running rounds and bursts.

    An engine's steps serve all completions at once, so the time of a round depends on its K only while all
    have that K. `begin` and `end` are for rounds whose K was chosen. Times are in seconds of any one clock.
    """

    def __init__(self) -> None:
        self._running, self._drafted = 0, 0
        self._offered = 1.0
        self._present, self._idle_since, self._idle_s = 0, 0.0, 0.0
        self._common: int | None = 0
        self._since = 0.0
        self._behind, self._are_behind, self._settled = 0, False, 0.0
        self._leader: object = None
        self._left = 0

    def enter(self, now: float) -> None:
        """Notes the begin of any round or burst."""
        if not self._present:
            self._idle_s += now - self._idle_since
        self._present += 1

    def leave(self, now: float) -> None:
        """Notes the end of any round or burst."""
        self._present -= 1
        self._idle_since = now

    def worked(self, now: float) -> float:
        """Returns the seconds in which any round or burst ran."""
        return (now if self._present else self._idle_since) - self._idle_s

    def begin(self, length: int, now: float, *, is_behind: bool) -> None:
        """Notes the begin of a round with the chosen K `length`, or of a burst with 0.

        `is_behind` says that the draft first has to compute the tokens of a burst.
        """
        self._count(1, length, is_behind, now)

    def end(self, who: object, length: int, now: float, *, is_behind: bool) -> None:
        """Notes the end of that round or burst of the completion `who`."""
        self._count(-1, -length, -is_behind, now)
        if who is self._leader:
            self._leader, self._left = None, 0

    @property
    def mean_length(self) -> float:
        """The mean K of all running rounds and bursts."""
        return self._drafted / max(self._running, 1)

    def share(self, load: int) -> float:
        """Returns the share of `load` completions that have drafts in recent steps; the caller has one."""
        return (1 + (load - 1) * self._offered) / load

    def stepped(self, number: int, is_offered: bool, load: int) -> None:
        """Notes `number` steps of one of `load` completions, and whether it had a draft to choose K for."""
        keep = KEEP ** (number / load)
        self._offered = self._offered * keep + is_offered * (1 - keep)

    def has_had(self, length: int, since: float) -> bool:
        """Says whether nearly all completions have had this K since then."""
        return self._common == length and self._since <= since

    def has_settled(self, since: float) -> bool:
        """Says whether nearly all drafts have been up to date since then."""
        return self._settled <= since and not self._are_behind

    def burst(self, who: object, number: int, *, is_last: bool) -> int:
        """Returns the length of a burst of the completion `who` that begins now, at most `number` tokens.

        All bursts end together, so that K changes for all at once: rounds beside bursts are slower than
        either alone. The completion that began first leads: its remaining tokens are those of all, since a
        step gives one token to each. If few are left, a completion begins a burst for others to join, unless
        these are the `is_last` bursts before another K: where completions begin all the time, bursts would
        never end.
        """
        if self._left <= (0 if is_last else number / 4):
            self._leader, self._left = who, number
        return min(self._left, number)

    @property
    def is_led(self) -> bool:
        """True while bursts have tokens left, so that K must not change now."""
        return self._left > 0

    def received(self, who: object, number: int) -> None:
        """Notes new tokens of the burst of `who`."""
        if who is self._leader:
            self._left -= number

    def _count(self, running: int, drafted: int, behind: int, now: float) -> None:
        self._running += running
        self._drafted += drafted
        self._behind += behind
        are_behind = self._behind > BEHIND * self._running
        if self._are_behind and not are_behind:
            self._settled = now
        self._are_behind = are_behind
        mean = self.mean_length
        length = round(mean)
        common = length if abs(mean - length) <= ALIKE else None
        if common != self._common:
            self._common, self._since = common, now
