"""What the arithmetic says of a replica beside a simulation of it, and how many it asks for."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from tests.unit.capacity.tempos import STEP_S, Flat, exponential, mean_end_to_end, replica
from trtspec.capacity.demand import Demand, jobs, lognormal
from trtspec.capacity.fleet import cost
from trtspec.capacity.queueing import states
from trtspec.capacity.replicas import cold_start
from trtspec.capacity.simulation import Setup, simulate
from trtspec.capacity.sizing import break_even, capacity, obstacle, size
from trtspec.capacity.steady import LatencyBounds, keeps, pace, steady
from trtspec.capacity.tempo import Planned, Replica
from trtspec.forecast.outlook import ForecastPair
from trtspec.forecast.roofline import Chip, Network
from trtspec.forecast.speedup import tokens_per_round
from trtspec.measure.bench.statistics import percentiles
from trtspec.recipe.fleet import Start

CHIP = Chip(4800e9, 450e9, 990e12, 1979e12)
TARGET = Network(70e9, 160e3, 140e9, 2e9, 2.6e6, 80, 16384)
DRAFT = Network(2.5e9, 32e3, 0, 2.5e9, 0.5e6, 16, 4096)
PAIR = ForecastPair(TARGET, DRAFT, CHIP, 100e-6, 8)
LENGTHS = lognormal(600, 200, 0.5)


def server(acceptance: float | None, places: int = 16) -> Replica:
    drafts = [] if acceptance is None else [acceptance] * 8
    pair = PAIR if drafts else replace(PAIR, draft=None)
    return Replica(Planned(pair, drafts), places, 300_000, 8, 8192, 1)


def p95(values: Iterable[float | None]) -> float:
    found = percentiles([value for value in values if value is not None])
    assert found is not None
    return found.p95


def test_equal_places_are_an_m_m_k() -> None:
    """The first token's 95th percentile is where the exponential tail of the wait has a twentieth left."""
    found = pace(replica(places=4), exponential(500))
    lengths = exponential(500)
    demand = Demand(3.4 / (lengths.output * STEP_S), lengths)
    one = steady(found, demand)
    queue = states(demand.rate, [number / (lengths.output * STEP_S) for number in range(1, 5)])
    assert one is not None
    assert queue is not None
    assert one.use == pytest.approx(queue.use)
    assert one.texts == pytest.approx(3.4)
    later = queue.waits_longer(one.time_to_first_token - STEP_S, (1 + lengths.variability) / 2)
    assert later == pytest.approx(0.05, rel=0.01)
    assert one.inter_token == STEP_S


@pytest.mark.parametrize("acceptance", [None, 0.7])
@pytest.mark.parametrize(("use", "off_by"), [(0.4, 0.2), (0.7, 0.6), (0.85, 0.3)])
def test_a_replica_does_what_the_arithmetic_says(acceptance: float | None, use: float, off_by: float) -> None:
    """At 0.7 a twentieth waits in line, and which side of it the 95th percentile is on makes it or not."""
    one = server(acceptance)
    found = pace(one, LENGTHS)
    demand = Demand(use * found.most, LENGTHS)
    expected = steady(found, demand)
    assert expected is not None
    outcome = simulate(Setup(one, 4), jobs(replace(demand, rate=4 * demand.rate), 1000 / demand.rate, 2), 2)
    assert mean_end_to_end(outcome) == pytest.approx(expected.end_to_end, rel=0.06)
    assert outcome.present / 4 == pytest.approx(expected.texts + expected.waiting, rel=0.1)
    assert p95(one.inter_token for one in outcome.done) == pytest.approx(expected.inter_token, rel=0.15)
    first = p95(one.time_to_first_token for one in outcome.done)
    assert first == pytest.approx(expected.time_to_first_token, rel=off_by)


def test_just_enough_replicas_keep_the_bounds() -> None:
    one, demand, bounds = server(0.7), Demand(200.0, LENGTHS), LatencyBounds(0.4, 0.03)
    sized = size(one, demand, bounds)
    assert sized is not None
    found = pace(one, LENGTHS)
    assert keeps(found, demand.of(1 / sized.replicas), bounds)
    assert not keeps(found, demand.of(1 / (sized.replicas - 1)), bounds)
    assert sized.steady.time_to_first_token <= 0.4
    assert sized.replicas == pytest.approx(200 / capacity(one, demand, bounds), rel=0.02)
    bunched = size(one, replace(demand, burstiness=1000.0), bounds)
    assert bunched is not None
    assert bunched.replicas > sized.replicas


def test_bounds_that_nothing_keeps_are_explained() -> None:
    one, demand = server(None), Demand(1.0, LENGTHS)
    assert size(one, demand, LatencyBounds(inter_token=0.01)) is None
    assert "a token takes 21" in obstacle(one, demand, LatencyBounds(inter_token=0.01))
    assert "the bound is 10 ms" in obstacle(one, demand, LatencyBounds(inter_token=0.01))
    assert "the first token takes" in obstacle(one, demand, LatencyBounds(time_to_first_token=0.001))
    assert capacity(one, demand, LatencyBounds(inter_token=0.01)) == 0.0


def test_drafts_pay_from_the_break_even_on() -> None:
    demand, bounds = Demand(1.0, LENGTHS), LatencyBounds(0.5)
    plain = capacity(server(None), demand, bounds)
    even = break_even(server(0.7), lambda share: Planned(PAIR, [share] * 8), plain, demand, bounds)
    assert even is not None
    assert capacity(server(even + 0.05), demand, bounds) > plain
    assert capacity(server(even - 0.05), demand, bounds) <= 1.001 * plain
    slow = replace(PAIR, draft=TARGET)
    assert break_even(server(0.7), lambda share: Planned(slow, [share] * 8), plain, demand, bounds) is None


def test_a_turn_has_the_draft_with_the_largest_goodput() -> None:
    tempo = Planned(PAIR, [0.7] * 8)
    best = tempo.turn(4, 700)
    assert best.tokens == pytest.approx(tokens_per_round([0.7] * len(best.survival)))
    for length in range(9):
        fixed = Planned(PAIR, [0.7] * 8, length).turn(4, 700)
        assert len(fixed.survival) == length
        assert fixed.tokens / fixed.seconds <= best.tokens / best.seconds
    assert Planned(PAIR, [0.0] * 8).turn(4, 700).survival == ()


def test_the_cache_takes_places_away() -> None:
    one = server(0.7)
    assert one.places_for(800) == 16
    assert one.places_for(99_992) == 3
    assert one.places_for(10**6) == 1
    assert replica(Flat(), 4).places_for(10**9) == 4


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


def test_what_a_million_tokens_cost() -> None:
    """10 requests of 200 tokens a second are 7.2 million an hour, on 18 GPUs at 4 each."""
    demand = Demand(10.0, lognormal(10, 200, 0))
    found = cost(18, demand, 4.0)
    assert (found.gpu_hours, found.hour, found.million) == (2.5, 72.0, 10.0)
    assert cost(18, demand, None).million is None
