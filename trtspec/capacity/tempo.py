"""Models the speed of a replica: all that the arithmetic and the simulation know of its engines; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import BatchLoad, Network, round_costs, step
from trtspec.forecast.speedup import tokens_per_round

_BLOCK = 64
"""Contexts are rounded to multiples of this many tokens."""


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


class Planned:
    """The engines of a pair before they are built; their times are by the roofline of `trtspec.forecast`.

    `acceptance` has the probability of each draft position; it is empty without drafts. With `length` all
    drafts have this length. Without it each iteration uses the length with the largest goodput at its load,
    which may be 0. The adaptive policy learns that too (`trtspec.serving.adaptive`).
    """

    def __init__(
        self, pair: ForecastPair, acceptance: Sequence[float] = (), length: int | None = None
    ) -> None:
        self._pair, self._acceptance = pair, tuple(acceptance[: pair.longest])
        longest = len(self._acceptance)
        self._lengths = range(longest + 1) if length is None else (min(length, longest),)
        self._turns: dict[tuple[int, int], Turn] = {}

    def turn(self, texts: int, context: float) -> Turn:
        block = max(round(context / _BLOCK), 1)
        key = texts, block
        if key not in self._turns:
            load = BatchLoad(texts, block * _BLOCK)
            self._turns[key] = max(
                (self._of(load, length) for length in self._lengths),
                key=lambda turn: turn.tokens / turn.seconds,
            )
        return self._turns[key]

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        """Reading a prompt shares the weights with the running step, so only its multiplications are added.

        In fact a step that waits for memory has multiplications to spare, so this is rather too slow.
        """
        pair, rows = self._pair, max(round(tokens), 1)
        readers = [pair.target, *([pair.draft] if pair.draft and has_drafts else [])]
        return sum(_reading_s(network, pair, rows) for network in readers)

    def _of(self, load: BatchLoad, length: int) -> Turn:
        pair = self._pair
        plain_s = step(pair.target, pair.chip, load).seconds
        if not length:
            return Turn(plain_s)
        costs = round_costs(pair.target, pair.draft, pair.chip, load, length, pair.overhead_s)
        drafts = self._acceptance[:length]
        survival = [
            tokens_per_round(drafts[: place + 1]) - tokens_per_round(drafts[:place])
            for place in range(length)
        ]
        return Turn(plain_s * costs.of(length), tuple(survival), plain_s * costs.draft * length)


def _reading_s(network: Network, pair: ForecastPair, rows: int) -> float:
    """Returns the seconds of a prompt's multiplications, and of its ranks' communication, beyond those of one
    row."""
    load = BatchLoad(1, rows // 2)
    whole, one = (step(network, pair.chip, load, count) for count in (rows, 1))
    return whole.multiplying_s + whole.rest_s - one.rest_s
