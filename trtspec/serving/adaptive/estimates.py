"""Estimates of acceptance and of the time of rounds, from past rounds. No I/O, no clock.

The speed of a machine changes all the time, with its clocks, other tenants and longer sequences. It changes
all rounds alike, so only the ratios of their times matter. The rounds of the K in use show the speed. Trials
of other K are rare, and are compared with the rounds before and after them.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass

from trtspec.serving.executor import SamplingConfig

FIRST_RATE = 0.7
"""The rate of a position without observations at it or before it."""
OWN_PRIOR = 6.0
"""The weight of the rate of all sequences in a sequence's own rate, in observations."""
OVERALL_PRIOR = 2.0
"""The weight of the rate of the previous position in a position's rate, in observations."""
HALF_LIFE_S = 2.0
"""The seconds after which an acceptance counts half, since sequences drift."""
FADING_S = 0.05
"""The seconds between two updates of these weights."""
HOTTEST = 2.0
"""The temperature from which on all sequences are of one kind."""
ANY_KIND = -1
"""The kind of sequences of several kinds that run at once."""


def kind_of(sampling: SamplingConfig) -> int:
    """Returns the kind of sequences with similar acceptance: 0 is greedy, then one for each half degree.

    A draft guesses less of a sequence, the higher its temperature is.
    """
    if sampling.is_greedy:
        return 0
    return 1 + round(2 * min(1.0 if sampling.temperature is None else sampling.temperature, HOTTEST))


class AcceptanceCounter:
    """Counts how often the token at each position was accepted if all before it were."""

    __slots__ = ("accepted", "reached")

    def __init__(self, longest: int) -> None:
        self.reached, self.accepted = [0.0] * longest, [0.0] * longest

    def record(self, num_verified: int, num_accepted: int, keep: float) -> None:
        """Adds one verification, which accepted `num_accepted` of `num_verified` tokens.

        Earlier observations of a position then count `keep` times as much.
        """
        reached, accepted = self.reached, self.accepted
        for position in range(min(num_accepted + 1, num_verified)):
            reached[position] = reached[position] * keep + 1
            accepted[position] = accepted[position] * keep + (position < num_accepted)

    def fade(self, share: float) -> None:
        """Makes all earlier observations count `share` times as much."""
        self.reached = [count * share for count in self.reached]
        self.accepted = [count * share for count in self.accepted]


class RecentAcceptance(AcceptanceCounter):
    """An `AcceptanceCounter` that forgets, while it is in use."""

    __slots__ = ("_since",)

    def __init__(self, longest: int) -> None:
        super().__init__(longest)
        self._since = 0.0

    def resume(self, now: float) -> None:
        """Notes the begin of its use."""
        self._since += now

    def rest(self, now: float) -> None:
        """Notes the end of its use."""
        self._since -= now

    def add(self, num_verified: int, num_accepted: int, keep: float, now: float) -> None:
        """Records one verification, after it has forgotten some of the earlier ones."""
        if now - self._since > FADING_S:
            self.fade(0.5 ** ((now - self._since) / HALF_LIFE_S))
            self._since = now
        self.record(num_verified, num_accepted, keep)


def expected_tokens(
    own: AcceptanceCounter, overall: AcceptanceCounter, longest: int, load: int, share: float = 1.0
) -> list[float]:
    """Returns the expected tokens of a round of K = 0, 1, … `longest`, the target's own included.

    They are the mean of all sequences, of which a `share` has drafts and the others get one token each. With
    drafts the number is 1 + a_1 + a_1 a_2 + …, where a_i is the rate of position i (Leviathan et al., arXiv
    2211.17192, section 3.1, without its assumption that all rates are equal). The more sequences run, the
    less their own rates count: drafts of one length share their steps, and the overall rates are known
    better.
    """
    expected, survives, rate, prior = [1.0], share, FIRST_RATE, OWN_PRIOR * load
    for position in range(longest):
        rate = (overall.accepted[position] + OVERALL_PRIOR * rate) / (
            overall.reached[position] + OVERALL_PRIOR
        )
        survives *= (own.accepted[position] + prior * rate) / (own.reached[position] + prior)
        expected.append(expected[-1] + survives)
    return expected


ALONE = ("", 0)
"""The key of one token of the target alone, for any origin of drafts."""
WINDOW = 3
"""The number of rounds before and after a trial that show the speed; at least one of each completion."""
NOISE = 0.2**2
"""The variance of the logarithm of one trial's time."""
LINE = 0.15**2
"""The variance of the logarithms of times around the fitted line."""
LEAST = 0.04**2
"""The smallest variance of the logarithm of an estimate, after many trials."""
SURETY = 3.0
"""The slope of the fitted line in standard deviations, before rounds of several K were measured."""
SURPRISE = 0.5
"""The largest error of an estimate, in logarithms, that one trial corrects: a pause may fall into a trial."""
NEVER = 16
"""After this many windows of rounds of another K, that K is in use: offers are shorter than the chosen K."""


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
    """Estimates times relative to one another, in seconds at the speed of the first rounds.

    Rounds with drafts of one `origin` take similar times. A K with few trials is estimated near the line
    through the others: each token takes one step of the draft and one row of the verification.
    """

    def __init__(self, longest: int, load: int) -> None:
        self._longest, self._window = longest, max(WINDOW, load)
        # At a high load a trial has rounds of all completions, though they are not independent.
        self._noise = NOISE / load**0.25
        self._seen: dict[tuple[str, int], LogEstimate] = {}
        self._chosen: dict[str, int] = {}
        self._in_use: dict[str, int] = {}
        self._before: deque[float] = deque(maxlen=self._window)
        self._trial: dict[tuple[str, int], list[float]] = {}
        self._after: list[float] = []
        self._fitted: dict[str, list[float]] = {}

    def use(self, origin: str, length: int) -> None:
        """Notes the chosen K, whose rounds show the speed from now on."""
        if self._chosen.get(origin) != length:
            self._chosen[origin] = self._in_use[origin] = length

    def record_alone(self, seconds: float) -> None:
        """Adds the time of a token of the target alone."""
        self._record(ALONE, seconds, 0 in self._in_use.values())

    def record(self, origin: str, length: int, seconds: float) -> None:
        """Adds the time of a round with K = `length`, at least 1."""
        self._record((origin, length), seconds, self._in_use.get(origin) == length)

    def seconds(self, origin: str) -> list[float]:
        """Returns the seconds of one token alone (K = 0) and of rounds with K = 1, 2, …

        It is empty until both a token alone and a round were measured.
        """
        alone = self._seen.get(ALONE)
        if origin not in self._fitted:
            self._fitted[origin] = self._fit(origin)
        if not alone or not self._fitted[origin]:
            return []
        return [alone.seconds, *self._fitted[origin]]

    def doubt(self, origin: str) -> list[float]:
        """Returns the relative standard deviation of each element of `seconds`."""
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
        """Corrects the estimates of the tried K and of the K in use, each by its share of the variance."""
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
        # Until rounds of several K were measured, half of a round's time is taken to grow with K.
        likely, sure = average / (2 * centre), (SURETY * 2 * centre) ** 2
        slope = max(0.0, (products + sure * likely) / (spread + sure))
        fitted = [max(average + slope * (n - centre), average / 10) for n in range(1, self._longest + 1)]
        for length, seen in found.items():
            share = LINE / (LINE + seen.variance)
            fitted[length - 1] += share * (seen.seconds - fitted[length - 1])
        return fitted


def _mean(values: Collection[float]) -> float:
    """Returns the mean without the largest and the smallest value, which may be outliers.

    More of them count: at a high load many rounds are long because another completion's prompt is computed.
    """
    middle = sorted(values)[1:-1] if len(values) > 2 else values
    return sum(middle) / len(middle)
