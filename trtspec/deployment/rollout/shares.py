"""The interval of a difference between two shares; pure."""

from __future__ import annotations

import math


def difference(
    own: float, count: float, other: float, count_of_other: float, errors: float
) -> tuple[float, float]:
    """Returns the ends of the interval of `own - other`, where these are shares of so many.

    `errors` are standard errors to an end. Newcombe's interval of two of Wilson's (1998, "Interval estimation
    for the difference between independent proportions", method 10), which is right of few and rare ones too.
    What is a share of none is known for certain.
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
