"""How requests come, and how long they are."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.capacity.demand import Demand, Lengths, jobs, lognormal, requests_in
from trtspec.measure.workloads.workload import arrivals
from trtspec.recipe.fleet import BurstSection

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
    assert Lengths(((10, 1), (20, 1), (30, 1), (60, 1))).prompts(2) == [15, 45]


@given(
    factor=st.floats(1, 20), seconds=st.integers(1, 50), every=st.integers(51, 300), until=st.floats(1, 1000)
)
def test_bursts_add_what_they_say(factor: float, seconds: int, every: int, until: float) -> None:
    """The number that is expected is the integral of the rate, summed here second by second."""
    demand = Demand(3.0, ONE, burst=BurstSection(factor=factor, seconds=seconds, every=every))
    parts = 2000
    middles = ((number + 0.5) * until / parts for number in range(parts))
    rates = [3.0 * (factor if time % every >= every - seconds else 1.0) for time in middles]
    assert requests_in(demand, until) == pytest.approx(sum(rates) * until / parts, rel=0.05)


def test_requests_come_at_the_rate_of_the_moment() -> None:
    demand = Demand(50.0, ONE, burst=BurstSection(factor=4, seconds=30, every=100))
    times = [job.arrival for job in jobs(demand, 300.0, 1)]
    assert times == sorted(times)
    inside = [time for time in times if time % 100 >= 70]
    assert len(inside) / 90 == pytest.approx(200, rel=0.05)
    assert (len(times) - len(inside)) / 210 == pytest.approx(50, rel=0.05)
    assert times[-1] < 300


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
