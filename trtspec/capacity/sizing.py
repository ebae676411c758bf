"""Computes how many replicas a load needs; pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace

from trtspec.capacity.demand import Demand
from trtspec.capacity.steady import LatencyBounds, Steady, keeps, pace, steady
from trtspec.capacity.tempo import Replica, Tempo

MOST = 10**6
"""The largest number of replicas that is tried."""
_ACCEPTANCES, _RATES = 2**8, 2**14
"""The numbers of equal parts in which the break-even and the capacity are told."""


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

    replicas = 1 + bisect_left(range(1, MOST + 1), True, key=bears)
    return of_size(replica, demand, replicas) if replicas <= MOST else None


def of_size(replica: Replica, demand: Demand, replicas: int) -> Sized | None:
    """Returns a fleet of this many replicas; None if they cannot serve the rate."""
    one = steady(pace(replica, demand.lengths), demand.of(1 / replicas))
    return Sized(demand.rate, replicas, one) if one else None


def capacity(replica: Replica, demand: Demand, bounds: LatencyBounds) -> float:
    """Returns the requests per second that one replica serves within the bounds; 0.0 if none.

    Requests come as a Poisson process, as they do at each of many replicas.
    """
    found = pace(replica, demand.lengths)
    part = bounds.use * found.most / _RATES

    def misses(parts: int) -> bool:
        return not keeps(found, replace(demand, rate=parts * part, burstiness=1.0), bounds)

    return part * bisect_left(range(1, _RATES + 1), True, key=misses)


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

    def gains(parts: int) -> bool:
        server = replace(replica, tempo=tempo(parts / _ACCEPTANCES))
        return capacity(server, demand, bounds) > 1.001 * plain

    parts = 1 + bisect_left(range(1, _ACCEPTANCES + 1), True, key=gains)
    return parts / _ACCEPTANCES if parts <= _ACCEPTANCES else None


def _longer(what: str, seconds: float, bound: float) -> str:
    return f"for a request alone, {what} takes {seconds * 1000:.1f} ms, and the bound is {bound * 1000:g} ms"
