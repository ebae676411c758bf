"""Whose turn it is on a device that several engines share."""

from __future__ import annotations

import asyncio
from typing import Protocol


class Player(Protocol):
    """An engine, seen as something that has work or not."""

    @property
    def has_work(self) -> bool: ...

    def step(self) -> None: ...


class Turns:
    """Each tick of the asyncio loop runs one step of the first engine that has work, in the order of joining.

    The draft engine joins before the target: no verification starts while drafts are being proposed, so that
    verifications wait for one another and run as one batch. Between two steps the loop runs the tasks whose
    results have come, and what they enqueue takes part in the next step.
    """

    def __init__(self) -> None:
        self._players: list[Player] = []
        self._tick: asyncio.Handle | None = None

    def join(self, player: Player) -> None:
        self._players.append(player)

    def leave(self, player: Player) -> None:
        self._players.remove(player)

    def wake(self) -> None:
        """To be called, on the loop's thread, when a player has got work."""
        if self._tick is None:
            self._tick = asyncio.get_running_loop().call_soon(self._run)

    def _run(self) -> None:
        self._tick = None
        player = next((player for player in self._players if player.has_work), None)
        if player is not None:
            try:
                player.step()
            finally:  # A listener that raises must not stop the others.
                if any(player.has_work for player in self._players):
                    self.wake()
