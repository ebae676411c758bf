"""The choice of K for each round of one completion: the protocol, and the fixed one."""

from __future__ import annotations

from typing import Literal, Protocol

from trtspec.serving.verification import VerificationCounts

Policy = Literal["adaptive", "fixed"]
"""How K is chosen for requests that name none."""


class Pace(Protocol):
    """Chooses the lengths of one completion's drafts, and is told how rounds went.

    `origin` names drafts that are accepted alike and take alike, `load` is the number of completions that
    run, and `now` is in seconds of the loop's clock. Every `begin` is followed by an `end`; what was learned
    is told before it. A `begin` that no `choose` came before is that of a burst of a text that has no draft.
    """

    burst: int
    """How many tokens the target decodes alone after a choice of 0."""

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        """Returns K of the next round, at most `longest`, or 0."""
        ...

    def begin(self, length: int, now: float) -> None:
        """Notes that a round with a draft of `length` tokens, or a burst with 0, has begun."""
        ...

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None:
        """Notes what came of a round, which took until now."""
        ...

    def told(self, num_tokens: int, now: float) -> None:
        """Notes tokens of a burst of the target alone."""
        ...

    def decoded(self, num_tokens: int, load: int) -> None:
        """Notes that a burst is complete."""
        ...

    def end(self, length: int, now: float) -> None:
        """Notes that the round or burst is over, in whatever way."""
        ...


class FixedPace:
    """Drafts as many tokens as there is room for, in every round."""

    burst = 16

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        return longest

    def begin(self, length: int, now: float) -> None:
        """Notes nothing, as all below."""

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None: ...

    def told(self, num_tokens: int, now: float) -> None: ...

    def decoded(self, num_tokens: int, load: int) -> None: ...

    def end(self, length: int, now: float) -> None: ...
