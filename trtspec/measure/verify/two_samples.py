"""Computes Pearson's chi-square test of two samples, and which differences it would have found."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.base.extras import require

LARGEST_SHIFT = 1e6


def distributions() -> Any:
    """Returns `scipy.stats`; raises `UnavailableError` where it is not installed."""
    require("the test of sampling, which --draws 0 leaves out,", "scipy")
    import scipy.stats

    return scipy.stats


def statistic(table: Sequence[Sequence[int]]) -> float:
    """Returns Pearson's chi-square of a table with two counts for each outcome.

    Its degrees of freedom are the number of outcomes minus one.
    """
    return float(distributions().chi2_contingency(table, correction=False).statistic)


def distance(table: Sequence[Sequence[int]]) -> float:
    """Returns the total variation between the two samples: half the sum of the differences of shares."""
    one, other = (sum(column) for column in zip(*table, strict=True))
    return float(sum(abs(row[0] / one - row[1] / other) for row in table) / 2)


def p_value(chi_square: float, freedom: int) -> float:
    """Returns the probability of a statistic at least this large if both samples have one distribution."""
    return float(distributions().chi2.sf(chi_square, freedom)) if freedom else 1.0


def detectable(freedom: int, size: float, limit: float, power: float) -> float:
    """Returns the total variation that the test finds with probability `power`, for any shape.

    `size` is n m / (n + m) for samples of n and m, summed over tests that are added up. The statistic of
    distributions p and q is noncentral chi-square with `size` times the sum of (p - q)^2 over their mean,
    which is at least `size` (2 TV)^2 by Cauchy's and Schwarz's inequality, since the mean sums to one. So a
    difference of any shape that has this total variation between the outcomes is found at least as often. It
    is 1 if not even distributions without a common outcome would be found.
    """
    stats = distributions()
    if not freedom:
        return 1.0
    bound = stats.chi2.isf(limit, freedom)
    # Bisection finds the shift: a larger shift is found more often.
    low, high = 0.0, LARGEST_SHIFT
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        is_found = stats.ncx2.sf(bound, freedom, middle) >= power
        low, high = (low, middle) if is_found else (middle, high)
    return float(min((high / (4 * size)) ** 0.5, 1.0))
