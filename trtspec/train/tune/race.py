"""Decides which candidates are measured on more answers, and which one is best; pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from trtspec.measure.bench.result import Interval
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.replay import Replay
from trtspec.train.tune.score import DraftLengthCosts, Score, ratio, score

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


@dataclass(frozen=True, slots=True)
class CandidateResult:
    """A candidate and its progress."""

    candidate: Candidate
    run: Run | None = None
    refused: str | None = None
    """The reason why it could not be measured."""

    @property
    def was_stopped(self) -> bool:
        """True if it was stopped early, since it could no longer win."""
        return self.run is not None and self.run.bound is not None


def ranked(standings: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Returns the standings, the fastest first; stopped candidates and then refused ones come last."""

    def place(standing: CandidateResult) -> tuple[int, float]:
        if standing.run is None:
            return 2, 0.0
        return int(standing.was_stopped), -standing.run.best.speedup.value

    return sorted(standings, key=place)


def winner(standings: Sequence[CandidateResult]) -> CandidateResult | None:
    """Returns the fastest; None if the target alone is faster than all."""
    best = next(iter(ranked(standings)), None)
    if best is None or best.run is None or best.was_stopped or best.run.best.speedup.value <= 1.0:
        return None
    return best


def against(best: CandidateResult, other: CandidateResult, score: Score) -> Interval:
    """Returns the winner's speed divided by that of another candidate, or another length of its own.

    Both are of the same answers. The other is not measurably slower if the interval begins at 1 or below.
    """
    assert best.run is not None
    assert other.run is not None
    return compare(best.run, other.run, (best.run.best.length, score.length))
