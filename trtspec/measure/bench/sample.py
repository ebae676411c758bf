"""Holds the times of one request, and of one block of requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtspec.client.endpoint import DraftCounts

ArmName = Literal["speculative", "plain"]


@dataclass(frozen=True, slots=True)
class RequestSample:
    """A measured request; times are seconds since its block began."""

    prompt: str
    category: str
    turn: int
    intended: float
    """The time at which it was due. Latencies count from here."""
    sent: float
    """The time at which it was sent."""
    ended: float
    pieces: tuple[float, ...] = ()
    """The time at which each piece of its text came."""
    characters: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    """The number of tokens, or of pieces of text if the server reports no tokens."""
    tokens_told: bool = True
    """True if the server reports the number of output tokens."""
    finish_reason: str | None = None
    counts: DraftCounts | None = None
    error: str | None = None
    """A kind of `AskError`; None for a whole answer."""
    problem: str = ""
    """The error in the server's words."""

    @property
    def time_to_first_token(self) -> float | None:
        return self.pieces[0] - self.intended if self.pieces else None

    @property
    def end_to_end(self) -> float:
        return self.ended - self.intended

    @property
    def inter_token(self) -> float | None:
        """The mean time of a token after the first text, as AIPerf defines it; None for fewer than two
        tokens."""
        if self.output_tokens < 2 or not self.pieces:
            return None
        return (self.ended - self.pieces[0]) / (self.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Block:
    """The requests that ran together."""

    samples: tuple[RequestSample, ...]
    seconds: float
    """The time until the last request had its answer."""
    full_until: float
    """The time, in seconds since the block began, at which its full load ended. Until then all streams were
    busy, or requests still came.
    """

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second under full load, 0.0 for none.

        In the tail fewer and fewer streams are busy. That is another load, at which drafts may gain more or
        less. A request that ended in the tail counts with the share of its pieces that came before.
        """
        window = self.full_until or self.seconds
        tokens = sum(
            sample.output_tokens * _share_before(sample.pieces, window)
            for sample in self.samples
            if sample.error is None
        )
        return tokens / window if window > 0 else 0.0

    @property
    def mean_end_to_end(self) -> float | None:
        """The mean time of the requests that were answered; None for none."""
        times = [sample.end_to_end for sample in self.samples if sample.error is None]
        return sum(times) / len(times) if times else None


def _share_before(pieces: tuple[float, ...], moment: float) -> float:
    return sum(piece <= moment for piece in pieces) / len(pieces) if pieces else 0.0
