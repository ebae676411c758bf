"""Sizes a fleet for a load, with drafts and without: replicas, their waits, GPUs and cost; pure.

Each replica is a queue in front of slots (`trtspec.capacity.queueing`) whose speed is measured or forecast
(`trtspec.capacity.speed`). Waits are rather too long than too short: a request at the 95th percentile of the
queue's states is given the 95th percentile of the times in that state.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from trtspec.base.roles import Role
from trtspec.capacity.cold_start import ColdStart, cold_start
from trtspec.capacity.demand import Demand, Lengths
from trtspec.capacity.queueing import QueueStates, states, stretch
from trtspec.capacity.speed import SHARE, ReplicaSpeed, RequestTimes
from trtspec.checkpoint.convert import rank_sizes
from trtspec.pipeline.plan.memory import budget_of
from trtspec.pipeline.plan.resolved import EnginePlan, Resolved
from trtspec.recipe import gpus
from trtspec.recipe.fleet import Start

MOST = 10**6
"""The largest number of replicas that is tried."""
_ACCEPTANCES, _RATES = 2**8, 2**14
"""The numbers of equal parts in which the break-even and the capacity are counted."""
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
    start: Start
    price: float | None = None
    """The price of a GPU's hour; None if unknown."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A server: its limits, its speed, and the bytes of its engines."""

    speed: ReplicaSpeed
    places: int
    """The number of slots for sequences."""
    gpus: int = 1
    kv_tokens: int | None = None
    """The tokens of all sequences that the KV cache holds; None if unknown, which means no limit."""
    longest_draft: int = 0
    """The tokens reserved after each sequence."""
    bytes: int = 0
    """The bytes of all engines."""
    fullest_bytes: int = 0
    """The bytes of the engines on the fullest GPU."""
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
    """Returns a server of a plan; one without drafts can use the draft's memory and GPUs.

    The bytes of engines are nearly those of their checkpoints.
    """
    target, placed, recipe = resolved.target, resolved.placement, resolved.loaded.recipe
    engines: dict[Role, EnginePlan] = dict(resolved.engines)
    if not has_drafts:
        engines = {Role.TARGET: replace(target, options=replace(target.options, max_draft_len=0))}
    sizes: dict[int, int] = {}
    for role, engine in engines.items():
        ranks = rank_sizes(engine.model.source, engine.checkpoint, engine.draft_inside)
        places: Sequence[int] = placed.of(role) or range(len(ranks))
        for place, size in zip(places, ranks, strict=False):
            sizes[place] = sizes.get(place, 0) + size
    # A replica on a CPU has no plan of memory.
    gpu = target.runner.gpu(recipe)
    used = {*placed.target, *(placed.draft if has_drafts else ())}
    return Replica(
        speed,
        places=min(engine.options.max_batch_size for engine in engines.values()),
        gpus=1 if recipe.hardware.gpu == gpus.NONE else len(used),
        kv_tokens=budget_of(gpu, engines, recipe.hardware.count).tokens if gpu else None,
        longest_draft=target.options.max_draft_len if has_drafts else 0,
        bytes=sum(sizes.values()),
        fullest_bytes=max(sizes.values()),
    )


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
    return ReplicaState(
        use=queue.use,
        running=running,
        waiting=(queue.mean_present - running) * waits,
        time_to_first_token=_first_quantile(times, queue, waits),
        inter_token=_quantile(zip(working, (one.token_p95 for one in times), strict=True), running),
        end_to_end=wait + running / demand.rate,
        draft_length=round(times[max(round(running), 1) - 1].draft_length),
    )


def _first_quantile(times: Sequence[RequestTimes], queue: QueueStates, waits: float) -> float:
    """Returns the 95th percentile of first tokens: a request that finds n others is one of n + 1."""
    if sum(queue.shares) >= SHARE:
        return _quantile(zip(queue.shares, (one.first_p95 for one in times), strict=True), 1.0)
    return queue.wait(SHARE, waits) + times[-1].first_p95


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


def break_even(
    replica: Replica, speed: Callable[[float], ReplicaSpeed], plain: float, need: FleetRequirements
) -> float | None:
    """Returns the acceptance from which a replica with drafts serves more than `plain` requests per second.

    None if it never does. `speed` gives its speed at an acceptance.
    """

    def gains(parts: int) -> bool:
        server = replace(replica, speed=speed(parts / _ACCEPTANCES))
        return goodput(server, need.demand, need.bounds) > 1.001 * plain

    parts = 1 + bisect_left(range(1, _ACCEPTANCES + 1), True, key=gains)
    return parts / _ACCEPTANCES if parts <= _ACCEPTANCES else None


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
    peak: int | None
    """The replicas for a burst; None without bursts, or if no number is enough."""
    state: ReplicaState
    """The state of each replica at the usual rate."""
    start: ColdStart
    """The start of all replicas at once."""
    one_more: ColdStart
    """The start of a single replica."""
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
    spread, burst = replica.speed.spread, demand.burst
    faster, slower = (
        fewest(replace(replica, slowdown=factor), demand, bounds) for factor in (1 - spread, 1 + spread)
    )
    peak = fewest(replica, replace(demand, rate=demand.rate * burst.factor), bounds) if burst else None
    start, one_more = (
        cold_start(need.start, replica.bytes, replica.fullest_bytes, count) for count in (replicas, 1)
    )
    money = cost(replicas * replica.gpus, demand, need.price)
    return FleetArm(
        replica, each, SizedFleet(replicas, (faster, slower), peak, state, start, one_more, money)
    )
