"""How requests come, and how long they are."""

from __future__ import annotations

import random
from itertools import pairwise
from statistics import fmean, pstdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trtspec.capacity.demand import Demand, Lengths, lognormal
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
