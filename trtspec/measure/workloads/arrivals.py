"""Computes the times of requests that do not wait for each other."""

from __future__ import annotations

import math
import random


def arrivals(rate: float, count: int, burstiness: float, seed: int) -> list[float]:
    """Returns `count` ascending times in seconds, from 0.0 on average 1 / `rate` apart.

    `burstiness` is the coefficient of variation of the gaps, squared: 1 is a Poisson process, 0 a clock,
    above 1 comes in bursts. Gaps have a gamma distribution, as in vLLM's `bench serve`, whose burstiness is
    the inverse of this number.
    """
    dice = random.Random(seed)  # noqa: S311
    now, times = 0.0, []
    for _ in range(count):
        times.append(now)
        gap = dice.gammavariate(1 / burstiness, burstiness / rate) if burstiness else 1 / rate
        now += gap if math.isfinite(gap) else 0.0
    return times
