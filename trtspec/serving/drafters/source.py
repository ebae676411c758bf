"""Defines the protocol between the coordinator and every source of drafts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.serving.executor import Request
from trtspec.serving.text import Text

ENGINE, LOOKUP, EARLIER = ORIGINS = ("engine", "lookup", "earlier_answers")
"""The origins of drafts: the draft engine, the text itself, or earlier answers to the same tenant."""


@dataclass(frozen=True, slots=True)
class Drafting:
    """A method of drafting."""

    kind: str
    """The name of the method, a key of `SOURCES` of `sources.py`."""
    options: Mapping[str, Any]
    """The method's options, numbers."""


DRAFT_MODEL = Drafting("draft_model", {})
"""The usual method: the draft engine proposes."""


@dataclass(frozen=True, slots=True)
class Offer:
    """The most tokens that a drafter can propose now."""

    origin: str
    """One of `ORIGINS`; drafts of one origin have similar acceptance and costs."""
    room: int
    """The most tokens of a proposal; 0 if the drafter proposes no more."""


class Drafter(Protocol):
    """Proposes the tokens that may follow one text, which grows from round to round."""

    @property
    def pause(self) -> int:
        """Says after how many tokens of the target alone to ask again, after no offer or one not taken."""
        ...

    @property
    def silence(self) -> str:
        """Says why there was no offer, by a name of `trtspec.serving.stats.FALLBACKS`."""
        ...

    def offer(self) -> Offer | None:
        """Returns what it can propose behind the text as it is; None for nothing at present."""
        ...

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Returns up to `request.max_tokens` tokens of what was offered last; fewer, or none, at the end.

        All are tokens of the target. Raises `Overdue` when the `deadline`, on the loop's clock, passes.
        """
        ...

    def end(self) -> None:
        """Notes that the text is complete."""
        ...


class DraftSource(Protocol):
    """Makes the drafters of a coordinator, one for each text; used on the thread of one asyncio loop."""

    def drafter(self, text: Text, tenant: str) -> Drafter:
        """Returns the drafter of a text; what one `tenant` was told is proposed to no other."""
        ...

    def reap(self, now: float) -> None:
        """Ends the proposals whose deadline has passed; it is called periodically."""
        ...
