"""Arrival times against what scipy knows of the distributions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scipy import stats

from trtspec.measure.workloads.workload import arrivals


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_are_of_a_gamma_distribution(burstiness: float) -> None:
    times = arrivals(5.0, 4001, burstiness, seed=7)
    gaps = [later - now for now, later in pairwise(times)]
    assert times[0] == 0
    expected = stats.gamma(1 / burstiness, scale=burstiness / 5)
    assert stats.kstest(gaps, expected.cdf).pvalue > 0.01
    assert times == arrivals(5.0, 4001, burstiness, seed=7) != arrivals(5.0, 4001, burstiness, seed=8)


def test_without_burstiness_a_clock_ticks() -> None:
    assert arrivals(4.0, 5, 0, seed=1) == [0, 0.25, 0.5, 0.75, 1.0]
