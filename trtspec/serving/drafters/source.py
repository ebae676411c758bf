"""Defines the protocol between the coordinator and every source of drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.serving.executor import Request
from trtspec.serving.text import Text

ENGINE, LOOKUP, EARLIER = ORIGINS = ("engine", "lookup", "earlier_answers")
"""The origins of drafts: the draft engine, the sequence itself, or earlier answers to the same tenant."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """A method of drafting."""

    kind: str
    """The name of the method, a key of `SOURCES` of `sources.py`."""
    options: Mapping[str, Any]
    """The numeric options of the method."""


DRAFT_MODEL = Drafting("draft_model", {})
"""The default method: the draft engine proposes."""


@dataclass(slots=True)
class Offer:
    """The offer of a drafter to propose tokens now."""

    origin: str
    """One of `ORIGINS`; drafts of one origin have similar acceptance and costs."""
    room: int
    """The largest number of tokens; 0 if the drafter will propose none any more."""


class Drafter(Protocol):
    """Proposes the next tokens of one sequence, which grows from round to round."""

    @property
    def pause(self) -> int:
        """The tokens that the target decodes alone before it is asked again, if there was no draft."""

    @property
    def silence(self) -> str:
        """The reason why there was no offer, one of `trtspec.serving.stats.FALLBACKS`."""

    def offer(self) -> Offer | None:
        """Returns an offer for the present sequence; None if there is nothing to propose."""

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Returns the proposal of the last offer: up to `request.max_tokens` tokens, or none.

        All are tokens of the target. Raises `EngineTimedOut` at the `deadline`, on the loop's clock.
        """

    def end(self) -> None:
        """Notes that the completion has ended. An engine has its own cache, so this does nothing."""
        return


class DraftSource(Protocol):
    """Makes the drafters of a coordinator, one for each sequence; used on the thread of one asyncio loop."""

    def drafter(self, text: Text, tenant: str) -> Drafter:
        """Returns the drafter of a sequence. It proposes no tokens from answers to other tenants."""

    def reap(self, now: float) -> None:
        """Ends the proposals whose deadline has passed, periodically. A lookup has none to end."""
        return
