"""Computes how many replicas a load needs; pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from trtspec.capacity.demand import Demand
from trtspec.capacity.steady import LatencyBounds, Steady, keeps, pace, steady
from trtspec.capacity.tempo import Replica, Tempo

MOST = 10**6
"""The largest number of replicas that is tried."""
_HALVINGS, _FINE = 8, 14


@dataclass(frozen=True, slots=True)
class Sized:
    """A fleet that can serve a load."""

    rate: float
    """Requests per second."""
    replicas: int
    """The number of replicas."""
    steady: Steady
    """The state of each replica."""


def size(replica: Replica, demand: Demand, bounds: LatencyBounds) -> Sized | None:
    """Returns the smallest number of replicas that serve the rate within the bounds; None if no number
    does."""
    found = pace(replica, demand.lengths)

    def bears(replicas: int) -> bool:
        return keeps(found, demand.of(1 / replicas), bounds)

    high = max(1, int(demand.rate / (bounds.use * found.most)))
    while not bears(high):
        if high >= MOST:
            return None
        high = min(2 * high, MOST)
    low = 0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if bears(middle) else (middle, high)
    return of_size(replica, demand, high)


def of_size(replica: Replica, demand: Demand, replicas: int) -> Sized | None:
    """Returns a fleet of this many replicas; None if they cannot serve the rate."""
    one = steady(pace(replica, demand.lengths), demand.of(1 / replicas))
    return Sized(demand.rate, replicas, one) if one else None


def capacity(replica: Replica, demand: Demand, bounds: LatencyBounds) -> float:
    """Returns the requests per second that one replica serves within the bounds; 0.0 if none.

    Requests come as a Poisson process, as they do at each of many replicas.
    """
    found = pace(replica, demand.lengths)
    high = bounds.use * found.most

    def bears(rate: float) -> bool:
        return keeps(found, replace(demand, rate=rate, burstiness=1.0), bounds)

    if bears(high):
        return high
    low = 0.0
    for _ in range(_FINE):
        middle = (low + high) / 2
        low, high = (middle, high) if bears(middle) else (low, middle)
    return low


def obstacle(replica: Replica, demand: Demand, bounds: LatencyBounds) -> str:
    """Returns in words why no number of replicas meets the bounds: a single request alone takes too long."""
    found = pace(replica, demand.lengths)
    alone = steady(found, replace(demand, rate=found.most / 10**4, burstiness=1.0))
    assert alone is not None
    told = []
    if bounds.time_to_first_token is not None and alone.time_to_first_token > bounds.time_to_first_token:
        told.append(_longer("the first token", alone.time_to_first_token, bounds.time_to_first_token))
    if bounds.inter_token is not None and alone.inter_token > bounds.inter_token:
        told.append(_longer("a token", alone.inter_token, bounds.inter_token))
    return " and ".join(told) or f"over {MOST:,} replicas"


def break_even(
    replica: Replica, tempo: Callable[[float], Tempo], plain: float, demand: Demand, bounds: LatencyBounds
) -> float | None:
    """Returns the acceptance from which a replica with drafts serves more than `plain` requests per second.

    None if it never does. `tempo` gives its times at an acceptance.
    """

    def gains(acceptance: float) -> bool:
        return capacity(replace(replica, tempo=tempo(acceptance)), demand, bounds) > 1.001 * plain

    if not gains(1.0):
        return None
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if gains(middle) else (middle, high)
    return high


def _longer(what: str, seconds: float, bound: float) -> str:
    return f"for a request alone, {what} takes {seconds * 1000:.1f} ms, and the bound is {bound * 1000:g} ms"
