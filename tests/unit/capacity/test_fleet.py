"""Arithmetic and simulation together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.capacity.test_sizing import LENGTHS, server
from trtspec.capacity.checks import at_usual_rate
from trtspec.capacity.demand import Demand
from trtspec.capacity.fleet import FleetRequirements, arm, checked, misses
from trtspec.capacity.replicas import EngineBytes
from trtspec.capacity.steady import LatencyBounds
from trtspec.recipe.fleet import BurstSection, Start

START = Start(
    image_gb=0,
    pull_gb_per_second=10,
    store_gb_per_second=100,
    verify_gb_per_second=10,
    load_gb_per_second=10,
    warm_up_seconds=1,
)
"""Engines of 10 GB are pulled, verified and loaded in 3 s, and ready after 4."""
WEIGHT = EngineBytes(10 * 10**9, 10 * 10**9)
BOUND_S = 0.34


def silent(amount: int, note: str = "", /) -> None:
    pass


def test_where_the_arithmetic_is_too_hopeful_replicas_are_added() -> None:
    """About a twentieth waits in line there, so that the 95th percentile is about to rise."""
    question = FleetRequirements(Demand(60.0, LENGTHS), LatencyBounds(BOUND_S), START, 0.8)
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
        question = FleetRequirements(Demand(60.0, LENGTHS), LatencyBounds(bound_s), START, 0.8)
        found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent)
        assert found.seen is not None
        assert found.slowed is not None
        return found.slowed.time_to_first_token.p95 / found.seen.time_to_first_token.p95

    assert 1.0 < grows(0.22) < 1.1
    assert grows(None) > 1.2


def test_a_quick_start_helps_in_a_long_burst_and_a_slow_one_does_not() -> None:
    demand = Demand(12.0, LENGTHS, burst=BurstSection(factor=2.0, seconds=180, every=900))
    question = FleetRequirements(demand, LatencyBounds(1.0), START, 0.8)
    quick = checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst
    late = replace(question, start=START.model_copy(update={"warm_up_seconds": 900}))
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
        Demand(12.0, LENGTHS, burst=BurstSection(factor=2.0, seconds=60, every=900)),
        LatencyBounds(),
        START,
        0.5,
    )
    found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst
    assert found is not None
    assert found.ready_after is not None
    assert 4.0 < found.ready_after < 60.0


def test_bursts_in_which_nobody_comes_are_not_told() -> None:
    question = FleetRequirements(
        Demand(0.001, LENGTHS, burst=BurstSection(factor=2.0, seconds=1, every=900)),
        LatencyBounds(),
        START,
        0.8,
    )
    assert checked(question, arm(question, server(0.7), WEIGHT), 0, silent).burst is None


def test_what_was_seen_is_of_as_many_replicas_as_are_told() -> None:
    """So bunched that the last try misses the bound as well."""
    question = FleetRequirements(Demand(60.0, LENGTHS, burstiness=100.0), LatencyBounds(BOUND_S), START, 0.8)
    found = checked(question, arm(question, server(0.7), WEIGHT), 0, silent)
    assert found.usual is not None
    assert found.seen == at_usual_rate(found.replica, found.usual, question.demand, 0, silent)
    assert misses(found, question.bounds)
