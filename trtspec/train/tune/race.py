"""Decides which candidates are measured on more answers, and drops those that cannot win; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtspec.measure.bench.result import Interval
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.costs import DraftLengthCosts
from trtspec.train.tune.estimate import ratio
from trtspec.train.tune.replay import Replay
from trtspec.train.tune.score import Score, score

FEWEST = 8
"""The number of answers before any candidate is stopped."""
PLAIN = Interval(1.0, 1.0, 1.0)
"""The speed-up of the target alone, which a draft must beat."""

Replays = dict[int, list[Replay]]
"""The replay of each answer, by K."""
Measure = Callable[[Sequence[RecordedAnswer]], Replays]
"""Returns the replays of answers with every K."""


@dataclass(frozen=True, slots=True)
class Run:
    """The progress of a candidate."""

    scores: tuple[Score, ...]
    """The scores, one for each K, the best first."""
    answers: int
    """The number of answers on which the candidate was measured."""
    replays: Replays
    costs: DraftLengthCosts
    bound: float | None = None
    """The upper bound of its best speed-up; None if it was measured on all answers."""
    lead: float | None = None
    """The lower bound of the leader's speed-up; None if the candidate was measured on all answers."""

    @property
    def best(self) -> Score:
        return self.scores[0]


def run(answers: Sequence[RecordedAnswer], costs: DraftLengthCosts, lead: float, measure: Measure) -> Run:
    """Measures a candidate on more and more answers, and stops once it can no longer reach `lead`."""
    replays: Replays = {}
    done = 0
    for until in _stages(len(answers)):
        for length, found in measure(answers[done:until]).items():
            replays.setdefault(length, []).extend(found)
        done = until
        scores = [score(length, answers[:done], found, costs) for length, found in replays.items()]
        bound = max(found.speedup.high for found in scores)
        scores.sort(key=lambda found: -found.speedup.value)
        if bound < lead and done < len(answers):
            return Run(tuple(scores), done, replays, costs, bound, lead)
    return Run(tuple(scores), done, replays, costs)


def compare(first: Run, second: Run, lengths: tuple[int, int]) -> Interval:
    """Returns the speed of `first` divided by that of `second`, each with its K, on their common answers.

    Effects of the answers that both share cancel out.
    """
    count = min(first.answers, second.answers)
    spent = [
        [found.costs.total(came) for came in found.replays[length][:count]]
        for found, length in zip((first, second), lengths, strict=True)
    ]
    same = first.costs == second.costs
    error = 0.0 if same else (first.costs.error**2 + second.costs.error**2) ** 0.5
    return ratio(spent[1], spent[0], error)


def _stages(count: int) -> Iterator[int]:
    until = FEWEST
    while until < count:
        yield until
        until *= 2
    yield count
