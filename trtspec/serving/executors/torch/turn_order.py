"""Whose turn it is on a device that several engines share. Pure."""

from __future__ import annotations

from collections.abc import Sequence


class TurnOrder:
    """Engines in the order of joining: the draft before the target.

    The first that has work goes first, so that no verification starts while drafts are being proposed:
    verifications wait for one another and run as one batch. It goes at most `patience` steps in a row while
    one behind it has work, which then has a step. A patience of the longest draft lets every draft that was
    begun be finished before the target goes on, and so keeps batches together, and bounds what arrivals that
    never end take from it.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._passed = 0

    def next(self, has_work: Sequence[bool]) -> int | None:
        """The index of the engine that makes the next step; None when none has work."""
        ready = [index for index, has in enumerate(has_work) if has]
        if len(ready) > 1 and self._passed < self.patience:
            self._passed += 1
            return ready[0]
        self._passed = 0
        return ready[:2][-1] if ready else None
