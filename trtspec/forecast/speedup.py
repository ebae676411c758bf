"""Computes how much faster a pair is than its target alone; pure.

Leviathan, Kalman, Matias, "Fast Inference from Transformers via Speculative Decoding" (2023), sections 3.1
and 3.3, with two terms that their formula lacks: a round costs something besides its draft and its
verification, and a verification costs more with each token that it reads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundCosts:
    """The costs of a round, in steps of the target alone with as many running sequences."""

    draft: float
    """The cost of a token of the draft (Leviathan's c)."""
    overhead: float = 0.0
    """The round's own cost."""
    verified: float = 0.0
    """The cost that each drafted token adds to the target's step."""

    def of(self, length: int) -> float:
        """Returns the cost of a round with a draft of so many tokens; 1.0 for none, which is a plain step."""
        return 1 + self.overhead + length * (self.draft + self.verified) if length else 1.0


def tokens_per_round(acceptance: Sequence[float]) -> float:
    """Returns the tokens that a round gives, the target's own one among them.

    `acceptance` has, for each position of a draft, the probability that its token is accepted where all
    before it were.
    """
    expected, reached = 1.0, 1.0
    for probability in acceptance:
        reached *= probability
        expected += reached
    return expected


def speedup(acceptance: Sequence[float], costs: RoundCosts) -> float:
    """Returns tokens a second with drafts of `len(acceptance)` tokens over those of the target alone."""
    return tokens_per_round(acceptance) / costs.of(len(acceptance))
