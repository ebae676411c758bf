"""Describes the load of a fleet: requests a second, and their lengths; pure."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from statistics import NormalDist, fmean, pstdev

STRATA = 512
"""How many lengths represent a distribution."""


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of requests."""

    pairs: tuple[tuple[int, int], ...]
    """The tokens of a prompt and of its answer. Each pair is as likely as any other."""

    @property
    def input(self) -> float:
        """The mean tokens of a prompt."""
        return fmean(pair[0] for pair in self.pairs)

    @property
    def output(self) -> float:
        """The mean tokens of an answer."""
        return fmean(pair[1] for pair in self.pairs)

    @property
    def context(self) -> float:
        """The mean tokens of a running sequence: its prompt and half of its answer, weighted by the answer's
        length."""
        whole = sum(pair[1] for pair in self.pairs)
        return sum(given * (asked + given / 2) for asked, given in self.pairs) / whole

    @property
    def variability(self) -> float:
        """The squared coefficient of variation of an answer's tokens."""
        answers = [pair[1] for pair in self.pairs]
        return (pstdev(answers) / fmean(answers)) ** 2

    def longest_input(self, share: float) -> int:
        """Returns the length that this share of the prompts does not exceed."""
        ordered = sorted(pair[0] for pair in self.pairs)
        return ordered[math.ceil(share * len(ordered)) - 1]


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of a fleet or of a part of it."""

    rate: float
    """The usual number of requests per second."""
    lengths: Lengths
    burstiness: float = 1.0
    """As in `trtspec.measure.workloads.workload.arrivals`."""

    def of(self, share: float) -> Demand:
        """Returns the demand on a part of the fleet if requests go to any replica with equal probability.

        If each event of a renewal process is kept with probability p, the gaps have the squared coefficient
        of variation `1 + p (c - 1)` (Whitt, "The queueing network analyzer", 1983, section 4.4).
        """
        burstiness = 1 + min(share, 1.0) * (self.burstiness - 1)
        return replace(self, rate=self.rate * share, burstiness=burstiness)


def lognormal(input_tokens: float, output_tokens: float, spread: float, seed: int = 0) -> Lengths:
    """Returns lengths with these means and `spread` times them as standard deviations.

    They are the middles of equally likely parts of two lognormal distributions, paired at random.
    """
    inputs, outputs = (_strata(mean, spread) for mean in (input_tokens, output_tokens))
    random.Random(seed).shuffle(outputs)  # noqa: S311
    return Lengths(tuple(zip(inputs, outputs, strict=True)))


def _strata(mean: float, spread: float) -> list[int]:
    if not spread:
        return [max(round(mean), 1)]
    sigma, normal = math.sqrt(math.log(1 + spread**2)), NormalDist()
    raw = [math.exp(sigma * normal.inv_cdf((part + 0.5) / STRATA)) for part in range(STRATA)]
    scale = mean / fmean(raw)
    return [max(round(value * scale), 1) for value in raw]
