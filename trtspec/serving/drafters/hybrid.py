"""Drafts from the sequence where it repeats itself at length, and from the draft engine elsewhere."""

from __future__ import annotations

from trtspec.serving.drafters.lookup import LookupDrafter, LookupSource
from trtspec.serving.drafters.source import Drafter, DraftSource, Offer
from trtspec.serving.executor import Request
from trtspec.serving.text import Text


class HybridSource:
    """Asks `lookup` first, which costs little, and `engine` if no long enough ending occurred before."""

    def __init__(self, lookup: LookupSource, engine: DraftSource) -> None:
        self._lookup, self._engine = lookup, engine

    def drafter(self, text: Text, tenant: str = "") -> HybridDrafter:
        return HybridDrafter(self._lookup.drafter(text, tenant), self._engine.drafter(text, tenant))

    def reap(self, now: float) -> None:
        self._engine.reap(now)


class HybridDrafter:
    """Proposes with the drafter that made the last offer."""

    def __init__(self, lookup: LookupDrafter, engine: Drafter) -> None:
        self._lookup, self._engine = lookup, engine
        self._chosen: Drafter = engine
        self.silence = engine.silence

    @property
    def pause(self) -> int:
        """The pause of `lookup`: the sequence may repeat itself soon, whatever the engine offers."""
        return self._lookup.pause

    def offer(self) -> Offer | None:
        """Returns None also if the engine has no room any more: the sequence may repeat itself later."""
        for drafter in (self._lookup, self._engine):
            self._chosen = drafter
            if (offer := drafter.offer()) and offer.room:
                return offer
        self.silence = "no_room" if offer else self._engine.silence
        return None

    async def propose(self, request: Request, deadline: float) -> list[int]:
        return await self._chosen.propose(request, deadline)

    def end(self) -> None:
        self._lookup.end()
