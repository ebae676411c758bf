"""Arithmetic and simulation together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.capacity.test_sizing import LENGTHS, server
from trtspec.capacity.checks import at_usual_rate
from trtspec.capacity.demand import Demand, DemandBurst
from trtspec.capacity.fleet import FleetRequirements, arm, checked, misses
from trtspec.capacity.replicas import EngineBytes
from trtspec.capacity.start import Rates
from trtspec.capacity.steady import LatencyBounds

RATES = Rates(0.0, 0.0, 1.0, 10e9, 100e9, 10e9, 10e9, 1.0)
"""Engines of 10 GB are pulled, verified and loaded in 3 s, and ready after 4."""
WEIGHT = EngineBytes(10 * 10**9, 10 * 10**9)
BOUND_S = 0.34


def silent(amount: int, note: str = "", /) -> None:
    pass


def test_where_the_arithmetic_is_too_hopeful_replicas_are_added() -> None:
    """About a twentieth waits in line there, so that the 95th percentile is about to rise."""
    question = FleetRequirements(Demand(60.0, LENGTHS), LatencyBounds(BOUND_S), RATES, 0.8)
    hopeful = arm(question, server(0.7), WEIGHT)
    found = checked(question, hopeful, 0, silent)
    assert hopeful.usual is not None
    assert found.usual is not None
    assert found.seen is not None
    missed = at_usual_rate(hopeful.replica, hopeful.usual, question.demand, 0, silent)
    assert missed.time_to_first_token.p95 > 1.05 * BOUND_S
    assert found.usual.replicas > hopeful.usual.replicas
    assert found.seen.time_to_first_token.p95 <= 1.05 * BOUND_S
    assert found.cost is not None
    assert found.cost.gpu_hours == pytest.approx(found.usual.replicas / (60 * LENGTHS.output * 3600) * 1e6)


def test_at_a_high_use_first_tokens_depend_on_small_differences() -> None:
    def grows(bound_s: float | None) -> float:
        question = FleetRequirements(Demand(60.0, LENGTHS), LatencyBounds(bound_s), RATES, 0.8)
        found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent)
        assert found.seen is not None
        assert found.slowed is not None
        return found.slowed.time_to_first_token.p95 / found.seen.time_to_first_token.p95

    assert 1.0 < grows(0.22) < 1.1
    assert grows(None) > 1.2


def test_a_quick_start_helps_in_a_long_burst_and_a_slow_one_does_not() -> None:
    demand = Demand(12.0, LENGTHS, burst=DemandBurst(2.0, 180, 900))
    question = FleetRequirements(demand, LatencyBounds(1.0), RATES, 0.8)
    quick = checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst
    late = replace(question, rates=replace(RATES, warm_up_s=900.0))
    slow = checked(late, arm(late, server(0.7), WEIGHT), 0, silent).burst
    assert quick is not None
    assert slow is not None
    assert quick.ready_after is not None
    # A scrape, a look, and the start.
    assert 4.0 < quick.ready_after < 60.0
    assert slow.ready_after is None
    assert slow.scaled.time_to_first_token == slow.usual.time_to_first_token
    waits = [seen.time_to_first_token.p95 for seen in (quick.usual, quick.scaled, quick.peak)]
    assert waits == sorted(waits, reverse=True)
    assert waits[1] < waits[0] / 2


def test_a_replica_that_was_wanted_before_the_burst_is_none_that_it_called_for() -> None:
    """At half of the places an autoscaler adds replicas at the usual rate too."""
    question = FleetRequirements(
        Demand(12.0, LENGTHS, burst=DemandBurst(2.0, 60, 900)), LatencyBounds(), RATES, 0.5
    )
    found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst
    assert found is not None
    assert found.ready_after is not None
    assert 4.0 < found.ready_after < 60.0


def test_bursts_in_which_nobody_comes_are_not_told() -> None:
    question = FleetRequirements(
        Demand(0.001, LENGTHS, burst=DemandBurst(2.0, 1, 900)), LatencyBounds(), RATES
    )
    assert checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst is None


def test_what_was_seen_is_of_as_many_replicas_as_are_told() -> None:
    """So bunched that the last try misses the bound as well."""
    question = FleetRequirements(Demand(60.0, LENGTHS, burstiness=100.0), LatencyBounds(BOUND_S), RATES)
    found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent)
    assert found.usual is not None
    assert found.seen == at_usual_rate(found.replica, found.usual, question.demand, 0, silent)
    assert misses(found, question.bounds)
