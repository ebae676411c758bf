"""Models the speed of one replica: all that the arithmetic and the simulation know about its engines."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Turn:
    """One iteration of the engines for all running sequences: a step without drafts, or a round with them.

    It gives each sequence one token of the target's own, and the draft tokens that are accepted.
    """

    seconds: float
    survival: tuple[float, ...] = ()
    """Item i is the probability that more than i draft tokens are accepted. It never grows with i."""
    drafting_s: float = 0.0
    """The seconds of drafting at the start of the iteration. A sequence that arrives in this time still gets
    drafts.
    """

    @property
    def tokens(self) -> float:
        """The mean number of tokens that each sequence gets."""
        return 1 + sum(self.survival)

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of that number."""
        accepted = self.tokens - 1
        squares = sum((2 * place + 1) * share for place, share in enumerate(self.survival))
        return (squares - accepted**2) / self.tokens**2


class Tempo(Protocol):
    """The times of a replica's engines, in seconds."""

    def turn(self, texts: int, context: float) -> Turn:
        """Returns one iteration of `texts` sequences with `context` tokens each on average."""
        ...

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        """Returns the seconds by which reading this many prompt tokens prolongs an iteration.

        With drafts, the draft engine reads them too.
        """
        ...


@dataclass(frozen=True, slots=True)
class SlowedTempo:
    """Engines whose iterations take `factor` times as long."""

    tempo: Tempo
    factor: float

    def turn(self, texts: int, context: float) -> Turn:
        turn = self.tempo.turn(texts, context)
        seconds, drafting_s = self.factor * turn.seconds, self.factor * turn.drafting_s
        return replace(turn, seconds=seconds, drafting_s=drafting_s)

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        return self.factor * self.tempo.prompt_s(tokens, has_drafts)


@dataclass(frozen=True, slots=True)
class Replica:
    """A server and its limits."""

    tempo: Tempo
    places: int
    """The number of slots for sequences."""
    kv_tokens: int | None
    """The tokens of all sequences that the KV cache holds; None if unknown, which means no limit.
    """
    longest_draft: int
    """The tokens reserved after each sequence."""
    most_rows: int
    """The largest number of prompt tokens that an iteration reads."""
    gpus: int
    """The number of GPUs."""

    def places_for(self, tokens: float) -> int:
        """Returns the largest number of running sequences of this many tokens; at least one."""
        if self.kv_tokens is None:
            return self.places
        return max(1, min(self.places, int(self.kv_tokens / (tokens + self.longest_draft))))
