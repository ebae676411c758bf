"""Describes the load of a fleet: requests a second, their lengths, and their bursts; pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import NormalDist, fmean, pstdev

from trtspec.measure.workloads.workload import arrivals
from trtspec.recipe.fleet import BurstSection

Pair = tuple[int, int]
"""The tokens of a prompt, and of its answer."""

STRATA = 512
"""How many lengths represent a distribution."""


@dataclass(frozen=True, slots=True)
class SimulatedRequest:
    """A request: when it comes, in seconds, and the tokens of its prompt and of its answer."""

    arrival: float
    input: int
    output: int


@dataclass(frozen=True, slots=True)
class Lengths:
    """The lengths of requests."""

    pairs: tuple[Pair, ...]
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

    def prompts(self, parts: int) -> list[float]:
        """Returns the mean prompt length in each of this number of equal parts, the shortest first."""
        ordered = sorted(pair[0] for pair in self.pairs)
        parts = min(parts, len(ordered))
        edges = [round(part * len(ordered) / parts) for part in range(parts + 1)]
        return [fmean(ordered[low:high]) for low, high in pairwise(edges)]


@dataclass(frozen=True, slots=True)
class Demand:
    """The load of a fleet or of a part of it."""

    rate: float
    """The usual number of requests per second."""
    lengths: Lengths
    burstiness: float = 1.0
    """As in `trtspec.measure.workloads.workload.arrivals`."""
    burst: BurstSection | None = None

    @property
    def peak(self) -> float:
        """The requests per second in a burst, or the usual rate without bursts."""
        return self.rate * (self.burst.factor if self.burst else 1.0)

    def of(self, share: float) -> Demand:
        """Returns the demand on a part of the fleet if requests go to any replica with equal probability.

        If each event of a renewal process is kept with probability p, the gaps have the squared coefficient
        of variation `1 + p (c - 1)` (Whitt, "The queueing network analyzer", 1983, section 4.4).
        """
        burstiness = 1 + min(share, 1.0) * (self.burstiness - 1)
        return Demand(self.rate * share, self.lengths, burstiness, self.burst)


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


def jobs(demand: Demand, seconds: float, seed: int) -> list[SimulatedRequest]:
    """Returns the requests of this many seconds; the time starts between two bursts."""
    # Lengths need a seed of their own, independent of other draws with this seed.
    dice = random.Random(f"lengths {seed}")  # noqa: S311
    pairs: Sequence[Pair] = demand.lengths.pairs
    return [SimulatedRequest(time, *dice.choice(pairs)) for time in _times(demand, seconds, seed)]


def _times(demand: Demand, seconds: float, seed: int) -> Iterator[float]:
    """Yields the times of requests: a process of unit rate, on a clock that runs faster in bursts."""
    whole = requests_in(demand, seconds)
    # 1.5 times the expected number, and more for bursty arrivals.
    count = int(1.5 * whole + 10 * math.sqrt((1 + demand.burstiness) * whole)) + 100
    for unit in arrivals(1.0, count, demand.burstiness, seed):
        if unit >= whole:
            return
        yield _moment(demand, unit)


def requests_in(demand: Demand, seconds: float) -> float:
    """Returns the expected number of requests from 0 to a time."""
    burst = demand.burst
    if burst is None:
        return demand.rate * seconds
    cycles, rest = divmod(seconds, burst.every)
    inside = max(0.0, rest - (burst.every - burst.seconds))
    more = (burst.factor - 1) * (cycles * burst.seconds + inside)
    return demand.rate * (seconds + more)


def _moment(demand: Demand, requests: float) -> float:
    """Returns the time by which this number of requests is expected."""
    burst = demand.burst
    if burst is None:
        return requests / demand.rate
    usual, bursting = burst.every - burst.seconds, burst.seconds
    cycles, rest = divmod(requests / demand.rate, usual + bursting * burst.factor)
    behind = max(0.0, rest - usual)
    return cycles * burst.every + min(rest, usual) + behind / burst.factor
