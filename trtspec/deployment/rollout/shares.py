"""Computes the interval of a difference between two shares; pure."""

from __future__ import annotations

import math


def difference(
    own: float, count: float, other: float, count_of_other: float, errors: float
) -> tuple[float, float]:
    """Returns the ends of the interval of `own - other`, which are shares of the given numbers.

    `errors` is the number of standard errors to an end. It is Newcombe's interval from two of Wilson's (1998,
    "Interval estimation for the difference between independent proportions", method 10), which is also right
    for few and rare events. A share of no requests counts as exact.
    """
    low, high = _wilson(own, count, errors)
    low_of_other, high_of_other = _wilson(other, count_of_other, errors) if count_of_other else (other, other)
    middle = own - other
    below, above = math.hypot(own - low, high_of_other - other), math.hypot(high - own, other - low_of_other)
    return middle - below, middle + above


def _wilson(share: float, count: float, errors: float) -> tuple[float, float]:
    square = errors * errors / count
    middle = (share + square / 2) / (1 + square)
    half = math.sqrt(square * (share * (1 - share) + square / 4)) / (1 + square)
    return max(middle - half, 0.0), min(middle + half, 1.0)
