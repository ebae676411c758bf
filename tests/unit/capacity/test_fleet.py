"""The number of replicas beside queues that are in textbooks, and what they cost."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace

import pytest
from scipy.stats import expon, poisson

from tests.unit.capacity.test_speed import DRAFT, LENGTHS, PAIR, TARGET
from trtspec.capacity.cold_start import cold_start
from trtspec.capacity.demand import Demand, Lengths, lognormal
from trtspec.capacity.fleet import (
    FleetRequirements,
    LatencyBounds,
    Replica,
    break_even,
    cost,
    fewest,
    goodput,
    obstacle,
    size,
    state_of,
)
from trtspec.capacity.speed import ForecastSpeed, RequestTimes
from trtspec.recipe.fleet import BurstSection, Start

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
    return FleetRequirements(demand, bounds, Start(), 4.0)


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


def test_a_burst_needs_as_many_replicas_as_its_rate() -> None:
    demand = Demand(100.0, LENGTHS, burst=BurstSection(factor=2))
    found = size(need(demand, LatencyBounds()), server(0.7)).fleet
    assert found is not None
    assert found.peak == fewest(server(0.7), Demand(200.0, LENGTHS), LatencyBounds())
    assert size(need(Demand(100.0, LENGTHS), LatencyBounds()), server(0.7)).fleet.peak is None  # type: ignore[union-attr]


def test_bounds_that_nothing_keeps_are_explained() -> None:
    one, demand = server(None), Demand(1.0, LENGTHS)
    slow = LatencyBounds(inter_token=0.01)
    assert size(need(demand, slow), one).fleet is None
    assert "a token takes 21" in obstacle(one, demand, slow)
    assert "the bound is 10 ms" in obstacle(one, demand, slow)
    assert "the first token takes" in obstacle(one, demand, LatencyBounds(time_to_first_token=0.001))
    assert goodput(one, demand, slow) == 0.0


def test_drafts_pay_from_the_break_even_on() -> None:
    wanted = need(Demand(1.0, LENGTHS), LatencyBounds(0.5))
    plain = goodput(server(None), wanted.demand, wanted.bounds)
    even = break_even(server(0.7), lambda share: ForecastSpeed(PAIR, share), plain, wanted)
    assert even is not None
    assert goodput(server(even + 0.05), wanted.demand, wanted.bounds) > plain
    assert goodput(server(even - 0.05), wanted.demand, wanted.bounds) <= 1.001 * plain
    slow = replace(PAIR, draft=TARGET)
    assert DRAFT.layers < TARGET.layers
    assert break_even(server(0.7), lambda share: ForecastSpeed(slow, share), plain, wanted) is None


def test_the_cache_takes_places_away() -> None:
    one = server(0.7)
    assert one.places_for(800) == 16
    assert one.places_for(99_992) == 3
    assert one.places_for(10**6) == 1
    assert Replica(EqualSlots(), 4).places_for(10**9) == 4


def test_a_start_is_the_sum_of_its_parts() -> None:
    rates = Start(verify_gb_per_second=0.125)
    one, many = (cold_start(rates, 100e9, 50e9, replicas) for replicas in (1, 100))
    assert {part.name: part.seconds for part in one.parts} == {
        "node": 0, "image": 100, "pull": 80, "verify": 20, "load": 25, "warm-up": 20
    }  # fmt: skip
    assert one.seconds == 245
    # Ten nodes at 10 Gbit/s are all that the store serves; a hundred share it.
    assert (many.parts[2].seconds, many.parts[3].seconds) == (800, 0)
    assert "which 100 share" in many.parts[2].because
    assert many.traffic == 10e12


def test_the_cost_of_a_million_tokens_is_that_of_the_gpus_for_as_long() -> None:
    """10 requests of 200 tokens a second are 7.2 million an hour, on 18 GPUs at 4 each."""
    demand = Demand(10.0, lognormal(10, 200, 0))
    found = cost(18, demand, 4.0)
    assert (found.gpu_hours, found.hour, found.million) == (2.5, 72.0, 10.0)
    assert cost(18, demand, None).million is None
