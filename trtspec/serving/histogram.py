"""A histogram with fixed buckets, as in Prometheus. Adding a value takes less than a microsecond."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
"""vLLM's buckets of the time to the first token (`vllm/v1/metrics/loggers.py`)."""
BETWEEN_TOKENS_S = (
    # Rounds take milliseconds, for which vLLM has only 0.01, 0.025 and 0.05.
    *(0.001, 0.0025, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025, 0.035, 0.05),
    *(0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
REQUEST_S = (
    # A request that finds a free slot waits for nothing, which in vLLM's first bucket would look like 150 ms.
    *(0.001, 0.01, 0.05, 0.1, 0.2),
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)


class Histogram:
    """Counts values in buckets whose inclusive upper `bounds` ascend; `sum` is their sum."""

    __slots__ = ("_counts", "bounds", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds, self.sum = bounds, 0.0
        self._counts = [0] * (len(bounds) + 1)

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def cumulative(self) -> list[int]:
        """Returns the number of values up to each bound, and last the number of all values."""
        return list(accumulate(self._counts[:]))


class SquaresHistogram(Histogram):
    """A histogram with the sum of squares of its values, for the standard error of their mean."""

    __slots__ = ("squares",)

    def __init__(self, bounds: tuple[float, ...]) -> None:
        super().__init__(bounds)
        self.squares = 0.0

    def observe(self, value: float) -> None:
        super().observe(value)
        self.squares += value * value
