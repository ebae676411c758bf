"""Computes the price of a fleet; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.capacity.demand import Demand

_HOUR, _MILLION = 3600, 10**6


@dataclass(frozen=True, slots=True)
class Cost:
    """GPU hours and, where a price is known, money, for a million tokens of answers; `hour` is of all."""

    gpu_hours: float
    hour: float | None
    million: float | None


def cost(gpus: int, demand: Demand, price: float | None) -> Cost:
    """Returns what `gpus` cost that serve the usual rate; a `price` is of an hour of one."""
    tokens = demand.rate * demand.lengths.output * _HOUR
    gpu_hours = gpus / tokens * _MILLION
    if price is None:
        return Cost(gpu_hours, None, None)
    return Cost(gpu_hours, gpus * price, gpu_hours * price)
