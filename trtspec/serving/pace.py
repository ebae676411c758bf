"""The choice of K for each round of one completion."""

from __future__ import annotations

from typing import Literal

from trtspec.serving.verification import VerificationCounts

Policy = Literal["adaptive", "fixed"]
"""The rule that chooses K for requests that name none."""


class Pace:
    """Chooses the lengths of one completion's drafts: the largest in every round, so that it notes nothing.

    Others choose by the times and results of the rounds. `origin` names drafts with similar acceptance and
    times. `load` is the number of running completions. `now` is in seconds of the loop's clock. Every `begin`
    is followed by an `end`, with the other notes of the round or burst between them. A `begin` without a
    `choose` before it is a burst for which there was no draft.
    """

    burst = 16
    """The number of tokens that the target decodes alone after a choice of 0."""

    def choose(self, origin: str, longest: int, load: int, now: float) -> int:
        """Returns K of the next round, 0 to `longest`."""
        return longest

    def begin(self, length: int, now: float) -> None:
        """Notes the begin of a round with a draft of `length` tokens, or of a burst with 0."""

    def verified(self, origin: str, counts: VerificationCounts, load: int, now: float) -> None:
        """Notes the result of a round."""

    def received(self, num_tokens: int, now: float) -> None:
        """Notes new tokens of a burst."""

    def decoded(self, num_tokens: int, load: int) -> None:
        """Notes that a burst is complete, with `num_tokens` in all."""

    def end(self, length: int, now: float) -> None:
        """Notes the end of the round or burst, complete or not."""
