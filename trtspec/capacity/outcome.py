"""Holds the result of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from trtspec.capacity.worker import Done
from trtspec.measure.bench.result import Percentiles
from trtspec.measure.bench.statistics import percentiles


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """All requests that came until the last was answered, after `seconds`.

    `present` is the mean number of requests that were there, and `replicas` that of replicas, starting ones
    among them; `use` is the share of time in which a ready one was at work. `started` are the moments at
    which more replicas became ready.
    """

    done: tuple[Done, ...]
    refused: int
    seconds: float
    present: float
    replicas: float
    most_replicas: int
    use: float
    started: tuple[float, ...] = ()

    @property
    def time_to_first_token(self) -> Percentiles | None:
        return percentiles([one.time_to_first_token for one in self.done])

    @property
    def inter_token(self) -> Percentiles | None:
        return percentiles([one.inter_token for one in self.done if one.inter_token is not None])

    @property
    def end_to_end(self) -> Percentiles | None:
        return percentiles([one.end_to_end for one in self.done])

    @property
    def mean_end_to_end(self) -> float:
        return fmean(one.end_to_end for one in self.done)

    def between(self, begin: float, end: float) -> tuple[Done, ...]:
        """Returns those that came from one moment to another."""
        return tuple(one for one in self.done if begin <= one.job.arrival < end)
