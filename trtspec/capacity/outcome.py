"""Holds the result of a simulation."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean

from trtspec.capacity.worker import Done
from trtspec.measure.bench.result import Percentiles
from trtspec.measure.bench.statistics import percentiles


@dataclass(frozen=True, slots=True)
class FleetOutcome:
    """The result of a simulation, which ends when the last request is answered."""

    done: tuple[Done, ...]
    """The requests that were answered."""
    refused: int
    """The number of requests that were refused."""
    seconds: float
    """The time until the last answer."""
    present: float
    """The mean number of requests in the fleet."""
    replicas: float
    """The mean number of replicas, starting ones included."""
    most_replicas: int
    use: float
    """The share of time in which a ready replica was at work."""
    started: tuple[float, ...] = ()
    """The times at which further replicas became ready."""

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
        """Returns the requests that came between two times."""
        return tuple(one for one in self.done if begin <= one.job.arrival < end)
