"""Scores one way of drafting with one K, from what rounds cost: speed-up and acceptance; pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from trtspec.forecast.speedup import RoundCosts
from trtspec.measure.bench.result import Interval
from trtspec.serving.drafters.source import ENGINE
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Replay

CONFIDENCE = 0.95
"""The level of the intervals."""


@dataclass(frozen=True, slots=True)
class AcceptanceScore:
    """The acceptance of drafts; shares are None if nothing was drafted."""

    per_token: float | None
    """The share of draft tokens that were accepted once all before them were."""
    of_drafted: float | None
    """Accepted divided by drafted tokens.

    It falls with K, since tokens after a wrong one are drafted in vain.
    """
    by_position: tuple[float | None, ...]
    """The same as `per_token` for each position of a draft."""
    tokens_per_round: float
    """The mean tokens of a round, the target's own included."""


@dataclass(frozen=True, slots=True)
class CategoryScore:
    """One category of answers: their number, the acceptance, and the speed-up."""

    answers: int
    speedup: Interval
    acceptance: AcceptanceScore


@dataclass(frozen=True, slots=True)
class Score:
    """A draft length, its speed-up over the target alone, and its acceptance."""

    length: int
    speedup: Interval
    acceptance: AcceptanceScore
    by_category: Mapping[str, CategoryScore]


def score(
    length: int, answers: Sequence[RecordedAnswer], replays: Sequence[Replay], costs: DraftLengthCosts
) -> Score:
    """Returns the score of the rounds of some answers, at least one, with K = `length`."""
    groups: dict[str, tuple[list[RecordedAnswer], list[Replay]]] = {}
    for answer, replay in zip(answers, replays, strict=True):
        of_category = groups.setdefault(answer.category, ([], []))
        of_category[0].append(answer)
        of_category[1].append(replay)
    return Score(
        length,
        speedup(answers, replays, costs),
        acceptance(replays),
        {
            category: CategoryScore(len(own), speedup(own, came, costs), acceptance(came))
            for category, (own, came) in groups.items()
        },
    )


def speedup(
    answers: Sequence[RecordedAnswer], replays: Sequence[Replay], costs: DraftLengthCosts
) -> Interval:
    """Returns tokens per second with drafts divided by those of the target alone."""
    return ratio([answer.steps for answer in answers], [costs.total(came) for came in replays], costs.error)


def acceptance(replays: Iterable[Replay]) -> AcceptanceScore:
    reached: list[int] = []
    accepted: list[int] = []
    drafted = rounds = given = 0
    for replay in replays:
        for round, count in replay.rounds.items():
            reached += [0] * (round.length - len(reached))
            accepted += [0] * (round.length - len(accepted))
            for position in range(min(round.accepted + 1, round.length)):
                reached[position] += count
                accepted[position] += count * (position < round.accepted)
            drafted += count * round.length
            rounds += count
            given += count * (round.accepted + 1)
    return AcceptanceScore(
        _share(sum(accepted), sum(reached)),
        _share(sum(accepted), drafted),
        tuple(_share(*pair) for pair in zip(accepted, reached, strict=True)),
        given / rounds if rounds else 1.0,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


@dataclass(frozen=True, slots=True)
class DraftLengthCosts:
    """The costs of rounds, in steps of the target alone; item n - 1 is for a draft of n tokens."""

    drafted: tuple[float, ...]
    """Rounds whose draft comes from an engine."""
    looked_up: tuple[float, ...]
    """Rounds whose draft comes from a look-up."""
    plain_s: float
    """A step of the target alone, in seconds."""
    error: float = 0.0
    """The relative standard error of all costs together."""

    def of(self, origin: str, length: int) -> float:
        """Returns the cost of one round; an empty draft takes the time of one token."""
        return (self.drafted if origin == ENGINE else self.looked_up)[max(length, 1) - 1]

    def total(self, replay: Replay) -> float:
        """Returns the total cost of an answer."""
        rounds = replay.rounds.items()
        return replay.alone + sum(count * self.of(round.origin, round.length) for round, count in rounds)


def of_lengths(costs: Callable[[int], RoundCosts], longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, from the parts in `costs`."""
    return tuple(costs(length).of(length) for length in range(1, longest + 1))


def line(costs: RoundCosts, longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, on one line."""
    return of_lengths(lambda _: costs, longest)


def ratio(wholes: Sequence[float], parts: Sequence[float], relative_error: float = 0.0) -> Interval:
    """Returns the sum of `wholes` divided by that of `parts`; each pair is from one randomly chosen answer.

    The variance is the jackknife's, of a ratio of means (Cochran, "Sampling techniques", section 6.17), and
    the interval Student's, of the logarithm. `relative_error` is the standard error of a factor that all
    pairs share. A single answer with a part gives no variance.
    """
    y, x = np.asarray(wholes, float), np.asarray(parts, float)
    value, count = float(y.sum() / x.sum()), len(y)
    if np.count_nonzero(x) < 2:
        return Interval(value, 0.0, math.inf)
    residuals = (y - value * x) / (1 - x / x.sum())
    own = math.sqrt((count - 1) / count * float((residuals**2).sum())) / float(y.sum()) if y.sum() else 0.0
    width = math.exp(t_quantile(count - 1) * math.hypot(own, relative_error))
    return Interval(value, value / width, value * width)


def t_quantile(degrees: int) -> float:
    """Returns the number of standard errors on either side of the mean, by Student's distribution.

    Cornish and Fisher's expansion about the normal one (Abramowitz and Stegun, 26.7.5), but for one and two
    degrees of freedom, where it is exact.
    """
    tail = (1 + CONFIDENCE) / 2
    if degrees == 1:
        return math.tan(math.pi * (tail - 0.5))
    if degrees == 2:
        return (2 * tail - 1) * math.sqrt(2 / (4 * tail * (1 - tail)))
    z = NormalDist().inv_cdf(tail)
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160,
    )
    corrected: float = z + sum(term / degrees**power for power, term in enumerate(terms, 1))
    return corrected
