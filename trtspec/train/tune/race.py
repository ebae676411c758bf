"""Decides which candidates are measured on more answers, and drops those that cannot win; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.costs import DraftLengthCosts
from trtspec.train.tune.estimate import IntervalEstimate, ratio
from trtspec.train.tune.replay import Replay
from trtspec.train.tune.score import Score, score

FEWEST = 8
"""How many answers are looked at before anybody is stopped."""
PLAIN = IntervalEstimate(1.0, 1.0, 1.0)
"""The speed-up of the target alone, whom a draft has to beat."""

Replays = dict[int, list[Replay]]
"""By K, what came of each answer."""
Measure = Callable[[Sequence[RecordedAnswer]], Replays]
"""Returns what comes of answers with every K."""


@dataclass(frozen=True, slots=True)
class Run:
    """The progress of a candidate."""

    scores: tuple[Score, ...]
    """One for each K, the best first."""
    answers: int
    """The number of answers on which the candidate was measured."""
    replays: Replays
    costs: DraftLengthCosts
    bound: float | None = None
    """The value that its best speed-up cannot exceed; None where it was measured on all answers."""
    lead: float | None = None
    """The value that the leader's speed-up was not below; None where it was measured on all answers."""

    @property
    def best(self) -> Score:
        return self.scores[0]


def run(answers: Sequence[RecordedAnswer], costs: DraftLengthCosts, lead: float, measure: Measure) -> Run:
    """Measures a candidate on more and more answers, and stops where it cannot reach `lead` any more."""
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


def compare(first: Run, second: Run, lengths: tuple[int, int]) -> IntervalEstimate:
    """Returns how many times as fast `first` is as `second`, each with its K, on the answers that both have.

    The answers are the same, so that what they have in common does not count.
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
