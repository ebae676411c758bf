"""Estimates a ratio from some answers, with its interval; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from trtspec.measure.bench.result import Interval

CONFIDENCE = 0.95
"""The level of the intervals."""


def ratio(wholes: Sequence[float], parts: Sequence[float], relative_error: float = 0.0) -> Interval:
    """Returns the sum of `wholes` divided by that of `parts`; each pair is from one randomly chosen answer.

    The variance is the jackknife's, of a ratio of means (Cochran, "Sampling techniques", section 6.17), and
    the interval Student's, of the logarithm. `relative_error` is the standard error of a factor that all
    pairs share. A single answer gives no variance.
    """
    y, x = np.asarray(wholes, float), np.asarray(parts, float)
    value, count = float(y.sum() / x.sum()), len(y)
    if count < 2:
        return Interval(value, 0.0, math.inf)
    residuals = (y - value * x) / (1 - x / x.sum())
    own = math.sqrt((count - 1) / count * float((residuals**2).sum())) / float(y.sum()) if y.sum() else 0.0
    width = math.exp(student(count - 1) * math.hypot(own, relative_error))
    return Interval(value, value / width, value * width)


def student(degrees: int) -> float:
    """Returns the number of standard errors on either side of the mean, by Student's distribution.

    Cornish and Fisher's expansion about the normal one (Abramowitz and Stegun, 26.7.5), but for one and two
    degrees of freedom, where it is exact.
    """
    tail = (1 + CONFIDENCE) / 2
    if degrees == 1:
        return math.tan(math.pi * (tail - 0.5))
    if degrees == 2:
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z = NormalDist().inv_cdf(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    corrected: float = z + sum(term / degrees**power for power, term in enumerate(terms, 1))
    return corrected
