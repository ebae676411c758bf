"""Computes the price of a fleet; pure."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.capacity.demand import Demand

_HOUR, _MILLION = 3600, 10**6


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of a fleet; money is None where no price is known."""

    gpu_hours: float
    """GPU hours for a million tokens of answers."""
    hour: float | None
    """The price of an hour of all GPUs."""
    million: float | None
    """The price of a million tokens of answers."""


def cost(gpus: int, demand: Demand, price: float | None) -> Cost:
    """Returns what `gpus` cost that serve the usual rate; a `price` is of an hour of one."""
    tokens = demand.rate * demand.lengths.output * _HOUR
    gpu_hours = gpus / tokens * _MILLION
    if price is None:
        return Cost(gpu_hours, None, None)
    return Cost(gpu_hours, gpus * price, gpu_hours * price)
