"""What every source of drafts has in common: the protocol between the coordinator and whatever proposes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from trtspec.serving.executor import Request
from trtspec.serving.text import Text


@dataclass(frozen=True, slots=True)
class Drafting:
    """The name of a method of drafting and its options; `SOURCES` of `sources.py` has the names."""

    kind: str
    options: Mapping[str, int]


class Drafter(Protocol):
    """Proposes the tokens that may follow one text, which grows from round to round."""

    def room(self) -> int:
        """Returns how many tokens may be asked for at most, now; 0 where none can be proposed any more."""
        ...

    def may_try(self) -> bool:
        """Says whether to ask in this round; if so, `propose` must follow."""
        ...

    async def propose(self, request: Request, deadline: float) -> list[int]:
        """Returns up to `request.max_tokens` tokens; fewer, or none, where it knows no more.

        All are tokens of the target. Raises `Overdue` when the `deadline`, on the loop's clock, passes.
        """
        ...


class DraftSource(Protocol):
    """Makes the drafters of a coordinator, one for each text; used on the thread of one asyncio loop."""

    def drafter(self, text: Text) -> Drafter: ...

    def reap(self, now: float) -> None:
        """Ends the proposals whose deadline has passed; it is called periodically."""
        ...
