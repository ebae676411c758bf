"""Predicts what drafts bring a pair at a load, by the roofline and Leviathan's model; pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtspec.forecast.roofline import BatchLoad, Chip, Network, round_costs, step
from trtspec.forecast.speedup import RoundCosts, speedup

_HALVINGS = 20

GainVerdict = Literal["yes", "no", "measure"]


@dataclass(frozen=True, slots=True)
class ForecastRange:
    """The range in which a forecast number is, in 95 of 100 cases."""

    low: float
    high: float

    @property
    def verdict(self) -> GainVerdict:
        """The answer to whether drafts pay, where the number is their gain."""
        return "yes" if self.low > 1 else "no" if self.high < 1 else "measure"


def within(value: float, error: float) -> ForecastRange:
    """Returns the range of a number with this relative error; each number with a range gets it here."""
    return ForecastRange(value / (1 + error), value * (1 + error))


@dataclass(frozen=True, slots=True)
class ForecastPair:
    """A target and what proposes for it on GPUs of one kind."""

    target: Network
    draft: Network | None
    """None if drafts are looked up and cost nothing."""
    chip: Chip
    overhead_s: float
    """The seconds that a round costs besides the engines."""
    longest: int
    """The longest draft that the target verifies."""

    @property
    def error(self) -> float:
        """The relative error of a step, and of a gain."""
        return self.chip.error(self.target.tensor * self.target.pipeline)

    def costs(self, load: BatchLoad, length: int) -> RoundCosts:
        """Returns the costs of a round with a draft of `length` tokens."""
        return round_costs(self.target, self.draft, self.chip, load, length, self.overhead_s)

    def plain_tokens_per_second(self, load: BatchLoad) -> float:
        """Returns the tokens per second of all sequences without drafts."""
        return load.sequences / step(self.target, self.chip, load).seconds


@dataclass(frozen=True, slots=True)
class Best:
    """The draft length with the largest speed-up."""

    length: int
    """0 where no draft gains."""
    speedup: float
    """The speed over that of the target alone; 1.0 where no draft gains."""


def best(pair: ForecastPair, load: BatchLoad, acceptance: float, longest: int | None = None) -> Best:
    """Returns the best length where each position is accepted with the same probability.

    `longest` is the pair's if left out.
    """
    lengths = range(1, (longest or pair.longest) + 1)
    found = [Best(n, speedup([acceptance] * n, pair.costs(load, n))) for n in lengths]
    return max([Best(0, 1.0), *found], key=lambda one: one.speedup)


def gain_range(pair: ForecastPair, load: BatchLoad, acceptance: float) -> ForecastRange:
    """Returns the range of the gain by the best length that is not 0."""
    lengths = range(1, pair.longest + 1)
    return within(max(speedup([acceptance] * n, pair.costs(load, n)) for n in lengths), pair.error)


def break_even(pair: ForecastPair, load: BatchLoad) -> float | None:
    """Returns the acceptance from which drafts gain at this load; None if even 1.0 would not."""
    if not best(pair, load, 1.0).length:
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if best(pair, load, middle).length else (middle, high)
    return high
