"""How long a round takes by its K, and a token of the target alone, at one load. No I/O, no clock."""

from __future__ import annotations

MEMORY = 24.0
"""How many observations a mean remembers."""
LARGEST = 4.0
"""An observation counts at most so many times the mean: another program may have had the processor."""


class Mean:
    """A mean of seconds that forgets, and how many observations it has."""

    __slots__ = ("count", "seconds")

    def __init__(self, seconds: float = 0.0, count: float = 0.0) -> None:
        self.seconds, self.count = seconds, count

    def record(self, seconds: float) -> None:
        if self.count >= 3:
            seconds = min(seconds, LARGEST * self.seconds)
        self.count = min(self.count + 1, MEMORY)
        self.seconds += (seconds - self.seconds) / self.count


class RoundTimes:
    """The seconds of rounds: `fitted[i]` are those of K = i + 1, and there are none before the first record.

    What was not observed twice is on the line through what was: a draft takes one step a token, and a
    verification computes one row more.
    """

    def __init__(self, longest: int) -> None:
        self.means = [Mean() for _ in range(longest)]
        self.fitted: list[float] = []

    def record(self, length: int, seconds: float) -> None:
        """Adds a round with K = `length`, at least 1."""
        self.means[length - 1].record(seconds)
        self._fit()

    def _fit(self) -> None:
        total = middle = average = 0.0
        for length, mean in enumerate(self.means, 1):
            total += mean.count
            middle += length * mean.count
            average += mean.seconds * mean.count
        if not total:
            return
        middle, average = middle / total, average / total
        products = spread = 0.0
        for length, mean in enumerate(self.means, 1):
            products += (length - middle) * (mean.seconds - average) * mean.count
            spread += (length - middle) ** 2 * mean.count
        # With one K alone, half of its round is thought to be what grows with K.
        slope = max(0.0, products / spread) if spread > 0 else average / (2 * middle)
        self.fitted = [
            mean.seconds if mean.count >= 2 else max(average + slope * (length - middle), average / 10)
            for length, mean in enumerate(self.means, 1)
        ]
