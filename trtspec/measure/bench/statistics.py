"""Computes intervals and percentiles of blocks; pure.

Times on a shared machine are skewed, and what slows it down multiplies them. So everything uses logarithms,
and means are geometric.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance

import numpy as np

from trtspec.base.extras import require
from trtspec.measure.bench.result import Interval, Percentiles

FEWEST_PAIRS = 6
"""With only four pairs, intervals miss the truth too often when another program slows some blocks down."""


def ratio(pairs: Sequence[tuple[float, float]], confidence: float) -> Interval | None:
    """Returns the ratio of the first to the second value, over pairs of blocks in alternating order.

    The second block of a pair finds caches warm. So half of the pairs favour each arm, and the gain that both
    have by that cancels out. The pairs with an even index and those with an odd one are therefore two groups,
    as in a crossover of two periods (Hills and Armitage 1979, "The two-period cross-over clinical trial"):
    the effect is the mean of the groups' means of the log ratios, its variance the pooled one within the
    groups, and Student's t has two degrees of freedom less than there are pairs. None with fewer than
    `FEWEST_PAIRS`, or where a value is not positive.
    """
    if (found := _crossover(pairs)) is None:
        return None
    means, error, freedom = found
    return _interval(fmean(means), error, freedom, confidence)


def gain_of_second(pairs: Sequence[tuple[float, float]], confidence: float) -> Interval | None:
    """Returns how much larger the value of a pair's second block is, as a geometric mean of both arms.

    The cause is a cache that holds the first block's prompts. If it helps one arm more than the other, the
    difference stays in `ratio`: its square contains the ratio of the two gains, which is at most this value
    if neither gain is below 1.
    """
    if (found := _crossover(pairs)) is None:
        return None
    (first, second), error, freedom = found
    return _interval((second - first) / 2, error, freedom, confidence)


def _crossover(pairs: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], float, int] | None:
    """Returns the mean log ratios of two groups of pairs, one for each order of the arms, and their error.

    It is the standard error of half the sum of the two means, which is also that of half their difference,
    with its degrees of freedom.
    """
    if len(pairs) < FEWEST_PAIRS or any(min(pair) <= 0 for pair in pairs):
        return None
    logs = [math.log(first / second) for first, second in pairs]
    groups = logs[::2], logs[1::2]
    even, odd = (fmean(group) for group in groups)
    squares = sum(variance(group) * (len(group) - 1) for group in groups)
    freedom = len(logs) - 2
    error = math.sqrt(squares / freedom * sum(1 / len(group) for group in groups)) / 2
    return (even, odd), error, freedom


def mean(values: Sequence[float], confidence: float) -> Interval | None:
    """Returns the geometric mean of blocks; None for fewer than two, or one that is not positive."""
    if len(values) < 2 or min(values) <= 0:
        return None
    logs = [math.log(value) for value in values]
    return _interval(fmean(logs), math.sqrt(variance(logs) / len(logs)), len(logs) - 1, confidence)


def unpaired_ratio(first: Sequence[float], second: Sequence[float], confidence: float) -> Interval | None:
    """Returns the ratio of the unpaired blocks of two runs, with Welch's interval of the log ratio."""
    if min(len(first), len(second)) < 2 or min(*first, *second) <= 0:
        return None
    logs = [[math.log(value) for value in values] for values in (first, second)]
    parts = [variance(values) / len(values) for values in logs]
    effect = fmean(logs[0]) - fmean(logs[1])
    if not sum(parts):
        return _interval(effect, 0.0, 1, confidence)
    freedom = sum(parts) ** 2 / sum(
        part**2 / (len(values) - 1) for part, values in zip(parts, logs, strict=True)
    )
    return _interval(effect, math.sqrt(sum(parts)), freedom, confidence)


def percentiles(values: Sequence[float]) -> Percentiles | None:
    """Returns the percentiles of values, by linear interpolation; None for no values."""
    if not values:
        return None
    return Percentiles(len(values), fmean(values), *np.percentile(values, (50, 90, 95, 99)).tolist())


def _interval(effect: float, error: float, freedom: float, confidence: float) -> Interval:
    require("a confidence interval", "scipy")
    from scipy.special import stdtrit

    # The two-sided quantile of Student's t for this confidence.
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * error
    return Interval(math.exp(effect), math.exp(effect - half), math.exp(effect + half))
