"""Plans a fleet for the same load with drafts and without; pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from trtspec.base.progress import Advance
from trtspec.capacity.checks import InBurst, Seen, at_usual_rate, in_burst
from trtspec.capacity.demand import Demand
from trtspec.capacity.replicas import ColdStart, EngineBytes, cold_start
from trtspec.capacity.sizing import Sized, capacity, obstacle, of_size, size
from trtspec.capacity.steady import LatencyBounds
from trtspec.capacity.tempo import Replica, SlowedTempo
from trtspec.recipe.fleet import Start

_HOUR, _MILLION = 3600, 10**6


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a fleet; money is None if no price is known."""

    gpu_hours: float
    """GPU hours for a million tokens of answers."""
    hour: float | None
    """The price of an hour of all GPUs."""
    million: float | None
    """The price of a million tokens of answers."""


def cost(gpus: int, demand: Demand, price: float | None) -> Cost:
    """Returns the cost of `gpus` that serve the usual rate; `price` is for one GPU's hour."""
    tokens = demand.rate * demand.lengths.output * _HOUR
    gpu_hours = gpus / tokens * _MILLION
    if price is None:
        return Cost(gpu_hours, None, None)
    return Cost(gpu_hours, gpus * price, gpu_hours * price)


_TRIES, _STEP, _CHANCE = 10, 1.04, 1.05
SLOWED = 1.03
"""The factor by which the iterations of a fleet are prolonged to see how much depends on their time: two
measurements of it differ by as much.
"""


@dataclass(frozen=True, slots=True)
class FleetRequirements:
    """The load of a fleet, and the bounds that it must meet."""

    demand: Demand
    bounds: LatencyBounds
    start: Start
    places: float
    """The autoscaler's target: the share of the slots in use."""
    price: float | None = None
    """The price of a GPU's hour; None if unknown."""


@dataclass(frozen=True, slots=True)
class FleetArm:
    """One kind of replica, and the number of them that the load needs."""

    replica: Replica
    weight: EngineBytes
    each: float
    """The requests per second that one replica can serve."""
    usual: Sized | None = None
    """The fleet for the usual rate."""
    peak: Sized | None = None
    """The fleet for a burst; the usual one without bursts."""
    start: ColdStart | None = None
    """The start of the whole usual fleet at once."""
    one_more: ColdStart | None = None
    """The start of a single replica."""
    cost: Cost | None = None
    problem: str | None = None
    """The reason why no number of replicas meets the bounds; then the other optional fields are None."""
    seen: Seen | None = None
    """The simulation at the usual rate."""
    slowed: Seen | None = None
    """The same simulation with iterations that take `SLOWED` times as long."""
    burst: InBurst | None = None


@dataclass(frozen=True, slots=True)
class FleetResult:
    """The fleets with drafts and without."""

    question: FleetRequirements
    plain: FleetArm | None
    """The plain arm; None if it was not measured."""
    drafts: FleetArm
    break_even: float | None
    """The acceptance from which a replica with drafts serves more requests than one without.

    None if it never does, or if the acceptance itself was measured.
    """


def arm(question: FleetRequirements, replica: Replica, weight: EngineBytes) -> FleetArm:
    """Returns the arm with the number of these replicas that the load needs."""
    demand, bounds = question.demand, question.bounds
    found = FleetArm(replica, weight, capacity(replica, demand, bounds))
    usual = size(replica, demand, bounds)
    peak = size(replica, replace(demand, rate=demand.peak), bounds) if demand.burst else usual
    if usual is None or peak is None:
        return replace(found, problem=obstacle(replica, demand, bounds))
    return _filled(question, replace(found, usual=usual, peak=peak))


def _filled(question: FleetRequirements, found: FleetArm) -> FleetArm:
    """Returns the arm with the values that follow from its number of replicas."""
    assert found.usual is not None
    pulled, loaded, replicas = found.weight.whole, found.weight.fullest, found.usual.replicas
    return replace(
        found,
        start=cold_start(question.start, pulled, loaded, replicas),
        one_more=cold_start(question.start, pulled, loaded, 1),
        cost=cost(replicas * found.replica.gpus, question.demand, question.price),
    )


def checked(question: FleetRequirements, found: FleetArm, seed: int, advance: Advance) -> FleetArm:
    """Returns the arm with its simulations, and with more replicas if the usual rate misses a bound."""
    demand = question.demand
    for more_tries in reversed(range(_TRIES)):
        if found.usual is None or found.peak is None:
            return found
        found = replace(found, seen=at_usual_rate(found.replica, found.usual, demand, seed, advance))
        if not more_tries or not misses(found, question.bounds):
            break
        found = _more(question, found)
    usual, peak = found.usual, found.peak
    assert usual is not None
    assert peak is not None
    slower = replace(found.replica, tempo=SlowedTempo(found.replica.tempo, SLOWED))
    found = replace(found, slowed=at_usual_rate(slower, usual, demand, seed, advance))
    if not demand.burst:
        return found
    more = max(peak.replicas - usual.replicas, 1)
    start_s = cold_start(question.start, found.weight.whole, found.weight.fullest, more).seconds
    burst = in_burst(found.replica, usual, peak, demand, question.places, start_s, seed, advance)
    return replace(found, burst=burst)


def misses(found: FleetArm, bounds: LatencyBounds) -> bool:
    """Says whether the simulated 95th percentile exceeds its bound by more than chance."""
    if found.seen is None:
        return False
    first, token = found.seen.time_to_first_token.p95, found.seen.inter_token
    if bounds.time_to_first_token is not None and first > _CHANCE * bounds.time_to_first_token:
        return True
    return bounds.inter_token is not None and token is not None and token.p95 > _CHANCE * bounds.inter_token


def _more(question: FleetRequirements, found: FleetArm) -> FleetArm:
    assert found.usual is not None
    assert found.peak is not None
    demand, sizes = question.demand, (found.usual, found.peak)
    rates = demand.rate, demand.peak
    usual, peak = (
        of_size(found.replica, replace(demand, rate=rate), math.ceil(_STEP * one.replicas))
        for rate, one in zip(rates, sizes, strict=True)
    )
    return _filled(question, replace(found, usual=usual, peak=peak))
