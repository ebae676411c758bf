"""Sizes a fleet for a load, with drafts and without: replicas, their waits, GPUs and cost; pure.

Each replica is a queue in front of slots whose speed depends on how many are in use, and is measured or
forecast (`trtspec.capacity.speed`). Waits are rather too long than too short: a request at the 95th
percentile of the queue's states is given the 95th percentile of the times in that state.

Requests of one replica are a birth and death process: they come at a rate, and with n running they end at the
rate `service[n - 1]`. Its states have the product form of M/M/k (Kleinrock, "Queueing systems" I, section
3.1), of which M/M/k is the case where the rate grows with n (section 3.5). While all requests have slots they
share the engines equally. Then the states depend only on the mean length of answers, not on their
distribution (Kelly, "Reversibility and stochastic networks", 1979, section 3.3). With a queue in front of the
slots that no longer holds; `stretch` corrects the wait as Allen and Cunneen do for G/G/k (Allen,
"Probability, statistics, and queueing theory", 1990, section 5.3.6), which is exact for M/M/k and M/G/1.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np

from trtspec.base.roles import Role
from trtspec.capacity.demand import Demand, Lengths
from trtspec.capacity.speed import SHARE, ReplicaSpeed, RequestTimes
from trtspec.pipeline.plan.memory import budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.recipe import gpus

MOST = 10**6
"""The largest number of replicas that is tried."""
_RATES = 2**14
"""The number of equal parts in which the capacity is counted."""
_HOUR, _MILLION = 3600, 10**6


@dataclass(frozen=True, slots=True)
class LatencyBounds:
    """Bounds that a replica must meet; its goodput is the rate that it serves within them."""

    time_to_first_token: float | None = None
    """Seconds to the first token, at the 95th percentile."""
    inter_token: float | None = None
    """Seconds for each token after the first, at the 95th percentile."""
    use: float = 0.85
    """The largest allowed share of a replica's capacity, for any latencies."""


@dataclass(frozen=True, slots=True)
class FleetRequirements:
    """The load of a fleet, and the bounds that it must meet."""

    demand: Demand
    bounds: LatencyBounds
    price: float | None = None
    """The price of a GPU's hour; None if unknown."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server: its limits and its speed."""

    speed: ReplicaSpeed
    places: int
    """The number of slots for sequences."""
    gpus: int = 1
    kv_tokens: int | None = None
    """The tokens of all sequences that the KV cache holds; None if unknown, which means no limit."""
    longest_draft: int = 0
    """The tokens reserved after each sequence."""
    slowdown: float = 1.0
    """A factor of all times."""

    def places_for(self, tokens: float) -> int:
        """Returns the largest number of running sequences of this many tokens; at least one."""
        if self.kv_tokens is None:
            return self.places
        return max(1, min(self.places, int(self.kv_tokens / (tokens + self.longest_draft))))

    def times(self, lengths: Lengths) -> list[RequestTimes]:
        """Returns the times of a request; item n - 1 is for n running sequences, up to the slots."""
        places = self.places_for(lengths.input + lengths.output)
        return [self.speed.at(number, lengths).prolonged(self.slowdown) for number in range(1, places + 1)]


def planned_replica(resolved: Resolved, speed: ReplicaSpeed, *, has_drafts: bool) -> Replica:
    """Returns a server of a plan; one without drafts can use the draft's memory and GPUs."""
    target, placed, recipe = resolved.target, resolved.placement, resolved.loaded.recipe
    engines: dict[Role, EnginePlan] = dict(resolved.engines)
    if not has_drafts:
        engines = {Role.TARGET: replace(target, options=replace(target.options, max_draft_len=0))}
    # A replica on a CPU has no plan of memory.
    gpu = target.runner.gpu(recipe)
    used = {*placed.target, *(placed.draft if has_drafts else ())}
    return Replica(
        speed,
        places=min(engine.options.max_batch_size for engine in engines.values()),
        gpus=1 if recipe.hardware.gpu == gpus.NONE else len(used),
        kv_tokens=budget_of(gpu, engines, recipe.hardware.count).tokens if gpu else None,
        longest_draft=target.options.max_draft_len if has_drafts else 0,
    )


@dataclass(frozen=True, slots=True)
class QueueStates:
    """The probabilities of each number of requests in a replica."""

    shares: tuple[float, ...]
    """Item n is the probability of n requests, for each n below the number of slots."""
    full: float
    """The probability that all slots are in use.

    It is also the probability of a wait: arrivals of a Poisson process see time averages.
    """
    drain: float
    """The rate at which the queue gets shorter."""
    use: float
    """The rate of arriving requests divided by the replica's capacity."""

    @property
    def mean_wait(self) -> float:
        """The mean seconds in the queue of all requests, including those that did not wait."""
        return self.full / self.drain

    def wait(self, share: float, stretched: float = 1.0) -> float:
        """Returns the seconds in the queue that this share of the requests does not exceed, with waits
        multiplied by `stretched`."""
        if self.full <= 1 - share:
            return 0.0
        return math.log(self.full / (1 - share)) / self.drain * stretched


def states(rate: float, service: Sequence[float]) -> QueueStates | None:
    """Returns the states of a replica that gets `rate` requests per second; None if its queue grows without
    end."""
    use = rate / service[-1]
    if use >= 1:
        return None
    logs = np.concatenate([[0.0], np.cumsum(np.log(rate / np.asarray(service, float)))])
    weights = np.exp(logs - logs.max())
    *below, last = weights.tolist()
    full = last / (1 - use)
    whole = sum(below) + full
    return QueueStates(tuple(one / whole for one in below), full / whole, service[-1] - rate, use)


def stretch(arrivals: float, service: float) -> float:
    """Returns the factor of waits compared with exponential gaps and lengths, by Allen and Cunneen.

    Both arguments are squared coefficients of variation.
    """
    return (arrivals + service) / 2


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """The state of a replica at one rate; times are in seconds."""

    use: float
    """The used share of the replica's capacity."""
    running: float
    """The mean number of running sequences."""
    waiting: float
    """The mean number of requests in the queue."""
    time_to_first_token: float
    """The 95th percentile over requests."""
    inter_token: float
    """The 95th percentile over running sequences."""
    end_to_end: float
    """The mean."""
    draft_length: int
    """The draft tokens of a round with the mean number of sequences."""

    def meets(self, bounds: LatencyBounds) -> bool:
        first, token = bounds.time_to_first_token, bounds.inter_token
        return (
            self.use <= bounds.use
            and (first is None or self.time_to_first_token <= first)
            and (token is None or self.inter_token <= token)
        )


def state_of(times: Sequence[RequestTimes], demand: Demand) -> ReplicaState | None:
    """Returns the state of a replica with these times; None if its queue grows without end."""
    answers = [one.answer(demand.lengths.output) for one in times]
    queue = states(demand.rate, [number / answer for number, answer in enumerate(answers, 1)])
    if queue is None:
        return None
    waits = stretch(demand.burstiness, demand.lengths.variability)
    working = [number * share for number, share in enumerate((*queue.shares[1:], queue.full), 1)]
    running, wait = sum(working), queue.mean_wait * waits
    first = queue.wait(SHARE, waits) + times[-1].first_p95
    if sum(queue.shares) >= SHARE:  # A request that finds n others is one of n + 1.
        first = _quantile(zip(queue.shares, (one.first_p95 for one in times), strict=True), 1.0)
    return ReplicaState(
        use=queue.use,
        running=running,
        waiting=demand.rate * wait,
        time_to_first_token=first,
        inter_token=_quantile(zip(working, (one.token_p95 for one in times), strict=True), running),
        end_to_end=wait + running / demand.rate,
        draft_length=round(times[max(round(running), 1) - 1].draft_length),
    )


def _quantile(weighted: Iterable[tuple[float, float]], whole: float) -> float:
    """Returns the value of the first state up to which there is `SHARE` of the whole weight."""
    found = list(weighted)
    place = bisect_left(list(accumulate(weight for weight, _ in found)), SHARE * whole)
    return found[min(place, len(found) - 1)][1]


def fewest(replica: Replica, demand: Demand, bounds: LatencyBounds) -> int | None:
    """Returns the smallest number of replicas that serve the rate within the bounds; None if no number
    does."""
    times = replica.times(demand.lengths)

    def suffices(replicas: int) -> bool:
        state = state_of(times, demand.of(1 / replicas))
        return state is not None and state.meets(bounds)

    replicas = 1 + bisect_left(range(1, MOST + 1), True, key=suffices)
    return replicas if replicas <= MOST else None


def goodput(replica: Replica, demand: Demand, bounds: LatencyBounds) -> float:
    """Returns the requests per second that one replica serves within the bounds; 0.0 if none.

    Requests come as a Poisson process, as they do at each of many replicas.
    """
    times = replica.times(demand.lengths)
    part = bounds.use * len(times) / times[-1].answer(demand.lengths.output) / _RATES

    def misses(parts: int) -> bool:
        state = state_of(times, replace(demand, rate=parts * part, burstiness=1.0))
        return state is None or not state.meets(bounds)

    return part * bisect_left(range(1, _RATES + 1), True, key=misses)


def obstacle(replica: Replica, demand: Demand, bounds: LatencyBounds) -> str:
    """Returns in words why no number of replicas meets the bounds: a single request alone takes too long."""
    alone = replica.times(demand.lengths)[0]
    checked = (
        ("the first token", alone.first_p95, bounds.time_to_first_token),
        ("a token", alone.token_p95, bounds.inter_token),
    )
    reasons = [
        f"for a request alone, {name} takes {seconds * 1000:.1f} ms, and the bound is {bound * 1000:g} ms"
        for name, seconds, bound in checked
        if bound is not None and seconds > bound
    ]
    return " and ".join(reasons) or f"over {MOST:,} replicas"


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
    gpu_hours = gpus / (demand.rate * demand.lengths.output * _HOUR) * _MILLION
    if price is None:
        return Cost(gpu_hours, None, None)
    return Cost(gpu_hours, gpus * price, gpu_hours * price)


@dataclass(frozen=True, slots=True)
class SizedFleet:
    """As many equal replicas as a load needs."""

    replicas: int
    spread: tuple[int | None, int | None]
    """The replicas if all times are shorter and longer by the spread of the speed; None for no number."""
    state: ReplicaState
    """The state of each replica at the usual rate."""
    cost: Cost


@dataclass(frozen=True, slots=True)
class FleetArm:
    """One kind of replica, and the fleet of them that the load needs."""

    replica: Replica
    goodput: float
    """The requests per second that one replica can serve."""
    fleet: SizedFleet | None
    """None if no number of replicas meets the bounds."""
    problem: str | None = None
    """The reason for that."""


def size(need: FleetRequirements, replica: Replica) -> FleetArm:
    """Returns the arm with the number of these replicas that the load needs."""
    demand, bounds = need.demand, need.bounds
    each, replicas = goodput(replica, demand, bounds), fewest(replica, demand, bounds)
    if replicas is None:
        return FleetArm(replica, each, None, obstacle(replica, demand, bounds))
    state = state_of(replica.times(demand.lengths), demand.of(1 / replicas))
    assert state is not None
    spread = replica.speed.spread
    faster, slower = (
        fewest(replace(replica, slowdown=factor), demand, bounds) for factor in (1 - spread, 1 + spread)
    )
    money = cost(replicas * replica.gpus, demand, need.price)
    return FleetArm(replica, each, SizedFleet(replicas, (faster, slower), state, money))
