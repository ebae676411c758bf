"""The order in which engines that share a device take turns. No I/O, no clock."""

from __future__ import annotations

from collections.abc import Sequence


class TurnOrder:
    """Decides which engine makes the next step; engines are in the order of joining, the draft first.

    The first engine that has work goes first, so that no verification starts while drafts are being proposed:
    verifications wait for one another and run as one batch. After `patience` steps in a row of one engine,
    the next one behind it that has work makes a step. With the longest draft as patience every draft that was
    begun is finished before the target goes on, which keeps batches together, and requests that keep arriving
    cannot hold the target up for longer.
    """

    def __init__(self, patience: int) -> None:
        self.patience = patience
        self._passed = 0

    def next(self, has_work: Sequence[bool]) -> int | None:
        """Returns the index of the engine that makes the next step; None when none has work."""
        ready = [index for index, has in enumerate(has_work) if has]
        if len(ready) > 1 and self._passed < self.patience:
            self._passed += 1
            return ready[0]
        self._passed = 0
        return ready[:2][-1] if ready else None
