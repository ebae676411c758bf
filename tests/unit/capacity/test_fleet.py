"""The number of replicas beside queues that are in textbooks, and what they cost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import expon, poisson

from tests.unit.capacity.test_speed import LENGTHS, PAIR
from trtspec.capacity.demand import Demand, Lengths, lognormal
from trtspec.capacity.fleet import (
    FleetRequirements,
    LatencyBounds,
    QueueStates,
    Replica,
    cost,
    fewest,
    goodput,
    obstacle,
    size,
    state_of,
    states,
    stretch,
)
from trtspec.capacity.speed import ForecastSpeed, RequestTimes
from trtspec.measure.workloads.workload import arrivals

ONE = Lengths(((10, 20),))


@given(mean=st.integers(8, 5000), spread=st.floats(0, 2), seed=st.integers(0, 3))
def test_lengths_have_the_means_that_were_asked_for(mean: int, spread: float, seed: int) -> None:
    found = lognormal(mean, 2 * mean, spread, seed)
    assert found.input == pytest.approx(mean, rel=0.1, abs=0.5)
    assert found.output == pytest.approx(2 * mean, rel=0.1, abs=0.5)
    assert found == lognormal(mean, 2 * mean, spread, seed)


def test_lengths_are_spread_as_asked_for() -> None:
    outputs = [pair[1] for pair in lognormal(500, 1000, 0.5).pairs]
    assert pstdev(outputs) / fmean(outputs) == pytest.approx(0.5, rel=0.05)


def test_longer_texts_are_longer_at_work() -> None:
    assert Lengths(((100, 100),)).context == 150
    assert Lengths(((100, 100), (700, 300))).context == pytest.approx((150 + 3 * 850) / 4)


def test_a_share_of_the_prompts_is_no_longer_than_told() -> None:
    lengths = Lengths(tuple((length, 1) for length in range(100, 0, -1)))
    assert [lengths.longest_input(share) for share in (0.01, 0.5, 0.95, 1.0)] == [1, 50, 95, 100]


def test_a_part_of_bunches_is_less_bunched() -> None:
    """Whitt's formula beside a thinned process: of each request one in four is kept, by chance."""
    dice = random.Random(1)
    kept = [time for time in arrivals(1.0, 400_000, 5.0, 1) if dice.random() < 0.25]
    gaps = [later - earlier for earlier, later in pairwise(kept)]
    part = Demand(1.0, ONE, 5.0).of(0.25)
    assert part.burstiness == 2.0
    assert (pstdev(gaps) / fmean(gaps)) ** 2 == pytest.approx(2.0, rel=0.05)
    assert part.rate == 0.25
    assert Demand(1.0, ONE, 0.0).of(0.25).burstiness == 0.75


def found(rate: float, service: list[float]) -> QueueStates:
    queue = states(rate, service)
    assert queue is not None
    return queue


@given(places=st.integers(1, 200), use=st.floats(0.01, 0.99), each=st.floats(0.01, 100))
def test_places_of_equal_speed_are_erlangs(places: int, use: float, each: float) -> None:
    """Erlang's C of scipy's Poisson distribution: his B is the truncated one."""
    load = places * use
    blocked = poisson.pmf(places, load) / poisson.cdf(places, load)
    waits = blocked / (1 - use * (1 - blocked))
    queue = found(load * each, [each * number for number in range(1, places + 1)])
    assert queue.full == pytest.approx(waits, rel=1e-6, abs=1e-12)
    assert queue.use == pytest.approx(use)
    assert queue.mean_wait == pytest.approx(waits / (places * each * (1 - use)), rel=1e-6, abs=1e-9)
    assert sum(queue.shares) + queue.full == pytest.approx(1)


def test_shared_engines_have_geometric_states() -> None:
    """Processor sharing of one server: n are there with probability (1 - use) use^n (Kleinrock II, 4.4)."""
    queue = found(0.6, [1.0] * 12)
    assert queue.shares == pytest.approx([0.4 * 0.6**number for number in range(12)])


def test_waits_are_exponential_behind_full_places() -> None:
    queue = found(3.0, [1.0, 2.0, 3.0, 4.0])
    assert queue.wait(1 - queue.full * math.exp(-2)) == pytest.approx(2.0)
    assert queue.wait(1 - queue.full * math.exp(-2), 3.0) == pytest.approx(6.0)
    assert queue.wait(1 - queue.full * math.exp(-2), 0.0) == 0
    assert queue.wait(1 - queue.full) == queue.wait(0.01) == 0


def test_more_than_the_engines_bear_is_told() -> None:
    assert states(4.0, [1.0, 4.0]) is None
    assert states(3.99, [1.0, 4.0]) is not None


def test_allen_and_cunneens_stretch_is_pollaczeks_for_one_server() -> None:
    """M/D/1 waits half as long as M/M/1, M/G/1 `(1 + c) / 2` times as long."""
    assert stretch(1.0, 0.0) == 0.5
    assert stretch(1.0, 3.0) == 2.0


STEP_S = 1e-3


@dataclass(frozen=True)
class EqualSlots:
    """A token takes as long for many sequences as for one, so each slot is a server of its own."""

    spread: float = 0.05

    def at(self, sequences: int, lengths: Lengths) -> RequestTimes:
        return RequestTimes(STEP_S, STEP_S, STEP_S, STEP_S)


def exponential(mean: float, count: int = 20_000, seed: int = 1) -> Lengths:
    """Answers whose length is exponential, as finely as in tokens, with prompts of one token."""
    dice = random.Random(seed)
    return Lengths(tuple((1, max(1, math.ceil(dice.expovariate(1 / mean)))) for _ in range(count)))


def server(acceptance: float | None, places: int = 16) -> Replica:
    pair = PAIR if acceptance is not None else replace(PAIR, draft=None)
    speed = ForecastSpeed(pair, acceptance or 0.0, None if acceptance is not None else 0)
    return Replica(speed, places, kv_tokens=300_000, longest_draft=8)


def need(demand: Demand, bounds: LatencyBounds) -> FleetRequirements:
    return FleetRequirements(demand, bounds, 4.0)


@pytest.mark.parametrize(("places", "use"), [(4, 0.85), (16, 0.9), (64, 0.7)])
def test_equal_slots_wait_as_erlang_says(places: int, use: float) -> None:
    """Erlang's C by scipy's Poisson distribution, and the exponential tail of the wait behind full slots."""
    lengths = exponential(500)
    service = 1 / (lengths.output * STEP_S)
    state = state_of(Replica(EqualSlots(), places).times(lengths), Demand(use * places * service, lengths))
    assert state is not None
    load = use * places
    blocked = poisson.pmf(places, load) / poisson.cdf(places, load)
    waits = blocked / (1 - use * (1 - blocked))
    stretched = (1 + lengths.variability) / 2
    drain = places * service * (1 - use)
    tail = expon.ppf(1 - 0.05 / waits, scale=stretched / drain) if waits > 0.05 else 0.0
    assert state.use == pytest.approx(use)
    assert state.running == pytest.approx(load)
    assert state.time_to_first_token == pytest.approx(tail + STEP_S)
    assert state.inter_token == STEP_S
    assert state.end_to_end == pytest.approx(1 / service + waits / drain * stretched)
    # Little: as many wait as come in the time of one wait.
    assert state.waiting == pytest.approx(use * places * service * waits / drain * stretched)


def test_just_enough_replicas_keep_the_bounds() -> None:
    one, demand, bounds = server(0.7), Demand(200.0, LENGTHS), LatencyBounds(0.6, 0.03)
    times, replicas = one.times(LENGTHS), fewest(one, demand, bounds)
    assert replicas is not None
    enough, too_few = (state_of(times, demand.of(1 / count)) for count in (replicas, replicas - 1))
    assert enough is not None
    assert enough.meets(bounds)
    assert enough.time_to_first_token <= 0.6
    assert too_few is None or not too_few.meets(bounds)
    assert replicas == pytest.approx(200 / goodput(one, demand, bounds), rel=0.03)
    bunched = fewest(one, replace(demand, burstiness=1000.0), bounds)
    assert bunched is not None
    assert bunched > replicas


def test_the_spread_has_the_replicas_of_faster_and_slower_engines() -> None:
    demand, bounds = Demand(200.0, LENGTHS), LatencyBounds(0.6)
    found = size(need(demand, bounds), server(0.7)).fleet
    assert found is not None
    fewer, more = found.spread
    assert fewer is not None
    assert more is not None
    assert fewer == pytest.approx(0.9 * found.replicas, rel=0.05)
    assert more == pytest.approx(1.1 * found.replicas, rel=0.05)
    # A bound that slower engines miss with any number of replicas.
    alone = server(0.7).times(LENGTHS)[0].first_p95
    tight = size(need(demand, LatencyBounds(1.05 * alone)), server(0.7)).fleet
    assert tight is not None
    assert tight.spread[1] is None


def test_bounds_that_nothing_keeps_are_explained() -> None:
    one, demand = server(None), Demand(1.0, LENGTHS)
    slow = LatencyBounds(inter_token=0.01)
    assert size(need(demand, slow), one).fleet is None
    assert "a token takes 20.7 ms" in obstacle(one, demand, slow)
    assert "the bound is 10 ms" in obstacle(one, demand, slow)
    assert "the first token takes" in obstacle(one, demand, LatencyBounds(time_to_first_token=0.001))
    assert goodput(one, demand, slow) == 0.0


def test_the_cache_takes_places_away() -> None:
    one = server(0.7)
    assert one.places_for(800) == 16
    assert one.places_for(99_992) == 3
    assert one.places_for(10**6) == 1
    assert Replica(EqualSlots(), 4).places_for(10**9) == 4


def test_the_cost_of_a_million_tokens_is_that_of_the_gpus_for_as_long() -> None:
    """10 requests of 200 tokens a second are 7.2 million an hour, on 18 GPUs at 4 each."""
    demand = Demand(10.0, lognormal(10, 200, 0))
    found = cost(18, demand, 4.0)
    assert (found.gpu_hours, found.hour, found.million) == (2.5, 72.0, 10.0)
    assert cost(18, demand, None).million is None
