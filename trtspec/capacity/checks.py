"""Checks sized replicas by a simulation: at the usual rate, and in bursts.

Since replicas are alike, it simulates only a few of many, with their part of the requests.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from trtspec.base.progress import Advance
from trtspec.capacity.autoscaler import ReplicaScaling
from trtspec.capacity.demand import Demand, jobs, requests_in
from trtspec.capacity.simulation import Setup, simulate
from trtspec.capacity.sizing import Sized
from trtspec.capacity.tempo import Replica
from trtspec.capacity.worker import Done
from trtspec.measure.bench.result import Percentiles
from trtspec.measure.bench.statistics import percentiles

REQUESTS = 3000
"""The approximate number of simulated requests in each case."""
MOST_REPLICAS = 6
LEAD_S = 60.0
_WARM_UP = 0.1
_MOST_BURSTS = 20


@dataclass(frozen=True, slots=True)
class Seen:
    """The latencies of simulated requests."""

    time_to_first_token: Percentiles
    inter_token: Percentiles | None
    end_to_end: Percentiles
    replicas: float
    """The mean number of replicas of the whole fleet."""


@dataclass(frozen=True, slots=True)
class InBurst:
    """The requests that came during a burst, with three different numbers of replicas."""

    usual: Seen
    """With as many replicas as usual."""
    scaled: Seen
    """With an autoscaler."""
    peak: Seen
    """With enough replicas for the burst."""
    ready_after: float | None
    """The seconds from the start of the burst until its first additional replica was ready:

    the mean of the simulated runs that had one. None if none was ready before the burst was over and all
    requests were answered.
    """


def at_usual_rate(replica: Replica, sized: Sized, demand: Demand, seed: int, advance: Advance) -> Seen:
    """Returns the latencies between two bursts, without the first tenth of the time."""
    share, replicas = _part(sized.replicas)
    usual = replace(demand.of(share), burst=None)
    seconds = REQUESTS / usual.rate
    outcome = simulate(Setup(replica, replicas), jobs(usual, seconds, seed), seed, advance)
    return _seen(outcome.between(_WARM_UP * seconds, math.inf), sized.replicas)


def in_burst(
    replica: Replica,
    usual: Sized,
    peak: Sized,
    demand: Demand,
    places: float,
    start_s: float,
    seed: int,
    advance: Advance,
) -> InBurst | None:
    """Returns the latencies of requests that come during a burst, for each number of replicas.

    None if no requests come. The autoscaler's target is the share `places` of the slots.
    """
    assert demand.burst is not None
    share, least = _part(usual.replicas)
    most = max(math.ceil(peak.replicas * share), least)
    one = demand.burst.model_copy(update={"every": LEAD_S + demand.burst.seconds})
    part = replace(demand.of(share), burst=one)
    scaling = ReplicaScaling(places * replica.places, least, most, start_s)
    setups = (Setup(replica, least), Setup(replica, least, scaling=scaling), Setup(replica, most))
    bursts = min(math.ceil(REQUESTS / requests_in(part, one.every)), _MOST_BURSTS)
    found: list[Seen] = []
    ready: list[float] = []
    for setup in setups:
        done: list[Done] = []
        replicas = 0.0
        for number in range(bursts):
            outcome = simulate(setup, jobs(part, one.every, seed + number), seed + number, advance)
            done += outcome.between(LEAD_S, math.inf)
            replicas += outcome.replicas / bursts
            ready += [at for at in outcome.started if at - start_s >= LEAD_S][:1]
        if not done:
            return None
        found.append(_seen(done, replicas / share))
    as_usual, scaled, enough = found
    after = sum(ready) / len(ready) - LEAD_S if ready else None
    return InBurst(as_usual, scaled, enough, after)


def _part(replicas: int) -> tuple[float, int]:
    """Returns the simulated share of a fleet, and its number of replicas."""
    part = min(replicas, MOST_REPLICAS)
    return part / replicas, part


def _seen(done: Sequence[Done], replicas: float) -> Seen:
    first = percentiles([one.time_to_first_token for one in done])
    whole = percentiles([one.end_to_end for one in done])
    assert first is not None
    assert whole is not None
    tokens = percentiles([one.inter_token for one in done if one.inter_token is not None])
    return Seen(first, tokens, whole, replicas)
