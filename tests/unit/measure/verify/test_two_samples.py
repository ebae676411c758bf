"""The test of two samples: scipy's own, right about chance, and as powerful as it says."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import scipy.stats

from trtspec.measure.verify.distribution import detectable, distance, p_value, statistic

RUNS, SIZE = 2000, 500
SHARES = np.array([0.3, 0.2, 0.2, 0.15, 0.1, 0.05])


def tables(other: np.ndarray[tuple[int], np.dtype[np.float64]], seed: int) -> Iterator[list[list[int]]]:
    """Tables of two samples, one with `SHARES` and one with the `other` shares."""
    dice = np.random.default_rng(seed)
    for one, two in zip(
        dice.multinomial(SIZE, SHARES, RUNS), dice.multinomial(SIZE, other, RUNS), strict=True
    ):
        yield np.stack([one, two], axis=1).tolist()


def found(other: np.ndarray[tuple[int], np.dtype[np.float64]], limit: float, seed: int) -> float:
    """How often the test says that the samples differ."""
    values = [p_value(statistic(table), len(SHARES) - 1) for table in tables(other, seed)]
    return sum(value < limit for value in values) / RUNS


def test_the_statistic_is_that_of_scipy() -> None:
    table = [[30, 22], [20, 31], [50, 47]]
    expected = scipy.stats.chi2_contingency(table, correction=False)
    assert statistic(table) == pytest.approx(expected.statistic)
    assert p_value(statistic(table), 2) == pytest.approx(expected.pvalue)


def test_one_distribution_is_said_to_be_two_as_rarely_as_the_limit_says() -> None:
    assert found(SHARES, 0.05, seed=1) == pytest.approx(0.05, abs=3 * (0.05 * 0.95 / RUNS) ** 0.5)


@pytest.mark.parametrize("seed", [2, *(pytest.param(seed, marks=pytest.mark.sweep) for seed in (3, 4))])
def test_a_difference_is_found_at_least_as_often_as_promised(seed: int) -> None:
    """Whatever its shape: the total variation alone counts."""
    limit, power = 0.001, 0.9
    variation = detectable(len(SHARES) - 1, SIZE / 2, limit, power)
    dice = np.random.default_rng(seed)
    signs = dice.permutation([1, 1, 1, -1, -1, -1])
    # In proportion to the shares: the shape that this test sees least of.
    moves = np.where(signs > 0, SHARES / SHARES[signs > 0].sum(), -SHARES / SHARES[signs < 0].sum())
    other = SHARES + variation * moves
    assert other.min() >= 0
    assert np.abs(other - SHARES).sum() / 2 == pytest.approx(variation)
    assert found(other, limit, seed) >= power - 3 * (power * (1 - power) / RUNS) ** 0.5
    assert found(SHARES + variation / 3 * moves, limit, seed) < power / 2


def test_more_draws_find_less() -> None:
    assert detectable(5, 1000, 0.001, 0.95) == pytest.approx(detectable(5, 250, 0.001, 0.95) / 2)
    assert detectable(0, 250, 0.001, 0.95) == 1.0, "one outcome tells nothing"
    assert detectable(5, 1, 0.001, 0.95) == 1.0


def test_the_distance_is_half_the_sum_of_differences() -> None:
    assert distance([[10, 0], [0, 20]]) == 1.0
    assert distance([[10, 30], [10, 10]]) == 0.25
