"""Estimates what rounds cost by their K, relative to one token of the target alone, at one load. No I/O, no
clock.

How fast a machine is changes all the time: clocks, other tenants, longer texts. It concerns all alike, so
only what they take beside one another decides. The K in use tells the speed; the others are tried seldom, and
are measured beside the rounds before and after.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

ALONE = ("", 0)
"""The key of a token of the target alone, for any origin of drafts."""
WINDOW = 3
"""How many rounds before and after a trial tell the speed during it, and at least one of each completion."""
NOISE, LINE, LEAST = 0.2**2, 0.15**2, 0.04**2
"""Variances of logarithms: of one trial, of rounds around their line, and of a K that was tried often."""
SURETY = 3.0
"""How many standard deviations the line's slope is from 0 before rounds of many K are known."""
SURPRISE = 0.5
"""By how much, in logarithms, a trial may differ from what was expected; a pause may fall into it."""
NEVER = 16
"""After how many windows of rounds of another K the one that was chosen never comes: offers are shorter."""


@dataclass(slots=True)
class LogEstimate:
    """An estimate of a time."""

    log: float
    """The logarithm of the seconds."""
    variance: float
    """The variance of `log`."""

    @property
    def seconds(self) -> float:
        return math.exp(self.log)


class RoundCostModel:
    """Relates rounds to one another, in seconds of a machine as fast as it was at first.

    Rounds of one `origin` of drafts take alike. What was hardly tried is near the line through what was: a
    draft takes one step a token, and a verification computes one row more.
    """

    def __init__(self, longest: int, load: int) -> None:
        self._longest, self._window = longest, max(WINDOW, load)
        # Where many run, a trial has rounds of all, though they are not independent.
        self._noise = NOISE / load**0.25
        self._seen: dict[tuple[str, int], LogEstimate] = {}
        self._chosen: dict[str, int] = {}
        self._in_use: dict[str, int] = {}
        self._before: deque[float] = deque(maxlen=self._window)
        self._trial: dict[tuple[str, int], list[float]] = {}
        self._after: list[float] = []
        self._fitted: dict[str, list[float]] = {}

    def use(self, origin: str, length: int) -> None:
        """Notes the K that is chosen: it is in use, and tells the speed, as long as it comes at all."""
        if self._chosen.get(origin) != length:
            self._chosen[origin] = self._in_use[origin] = length

    def record_alone(self, seconds: float) -> None:
        """Adds what a token of the target alone took."""
        self._record(ALONE, seconds, 0 in self._in_use.values())

    def record(self, origin: str, length: int, seconds: float) -> None:
        """Adds a round with K = `length`, at least 1."""
        self._record((origin, length), seconds, self._in_use.get(origin) == length)

    def seconds(self, origin: str) -> list[float]:
        """Returns those of K = 0 (a token), 1, 2, …; none as long as either kind was never seen."""
        alone = self._seen.get(ALONE)
        if origin not in self._fitted:
            self._fitted[origin] = self._fit(origin)
        if not alone or not self._fitted[origin]:
            return []
        return [alone.seconds, *self._fitted[origin]]

    def doubt(self, origin: str) -> list[float]:
        """Returns by which share `seconds` may be wrong, as standard deviations."""
        keys = [ALONE, *((origin, length) for length in range(1, self._longest + 1))]
        unknown = LogEstimate(0.0, NOISE)
        return [math.sqrt(self._seen.get(key, unknown).variance) for key in keys]

    def _record(self, key: tuple[str, int], seconds: float, is_in_use: bool) -> None:
        if seconds <= 0:  # The clock is too coarse.
            return
        if not is_in_use:
            self._try(key, seconds)
            return
        seen = self._seen.get(key)
        if seen is None:
            speed = _mean(self._before) if self._before else 1.0
            seen = self._seen[key] = LogEstimate(math.log(seconds / speed), self._noise)
            self._fitted.clear()
        if not self._trial:
            self._before.append(seconds / seen.seconds)
            return
        self._after.append(seconds / seen.seconds)
        if len(self._after) == self._window:
            self._end_trial(seen)

    def _try(self, key: tuple[str, int], seconds: float) -> None:
        tried = self._trial.setdefault(key, [])
        tried.append(seconds)
        if len(tried) < NEVER * self._window:
            return
        origin, length = key
        if not length:
            tried.pop(0)
            return
        self._in_use[origin] = length
        self._trial.clear()
        self._after.clear()

    def _end_trial(self, in_use: LogEstimate) -> None:
        after = _mean(self._after)
        before = _mean(self._before) if self._before else after
        noise = self._noise + math.log(after / before) ** 2 / 4
        for key, seconds in self._trial.items():
            self._learn(key, math.log(2 * sum(seconds) / len(seconds) / (before + after)), in_use, noise)
        self._before.extend(self._after)
        self._after.clear()
        self._trial.clear()
        self._fitted.clear()

    def _learn(self, key: tuple[str, int], log: float, in_use: LogEstimate, noise: float) -> None:
        """Moves both what was tried and what it was measured by, each by its share of the doubt."""
        seen = self._seen.get(key)
        if seen is None:
            self._seen[key] = LogEstimate(log, noise + in_use.variance)
            return
        surprise = min(max(log - seen.log, -SURPRISE), SURPRISE)
        doubt = seen.variance + in_use.variance + noise
        for estimate, sign in ((seen, 1), (in_use, -1)):
            share = estimate.variance / doubt
            estimate.log += sign * share * surprise
            estimate.variance = max(estimate.variance * (1 - share), LEAST)

    def _fit(self, origin: str) -> list[float]:
        found = {length: seen for (name, length), seen in self._seen.items() if name == origin and length}
        if not found:
            return []
        weights = {length: 1 / seen.variance for length, seen in found.items()}
        total = sum(weights.values())
        centre = sum(weight * length for length, weight in weights.items()) / total
        average = sum(weight * found[length].seconds for length, weight in weights.items()) / total
        products = spread = 0.0
        for length, weight in weights.items():
            products += weight * (length - centre) * (found[length].seconds - average)
            spread += weight * (length - centre) ** 2
        # Half of a round is thought to be what grows with K, until rounds of many K are known.
        likely, sure = average / (2 * centre), (SURETY * 2 * centre) ** 2
        slope = max(0.0, (products + sure * likely) / (spread + sure))
        fitted = [max(average + slope * (n - centre), average / 10) for n in range(1, self._longest + 1)]
        for length, seen in found.items():
            share = LINE / (LINE + seen.variance)
            fitted[length - 1] += share * (seen.seconds - fitted[length - 1])
        return fitted


def _mean(values: Collection[float]) -> float:
    """Returns the mean without the largest and the smallest: one may be an accident, many are not.

    Where many run, some rounds are long since another completion's prompt is read, and that is paid too.
    """
    kept = sorted(values)[1:-1] if len(values) > 2 else values
    return sum(kept) / len(kept)
