"""Holds the result of each candidate, or why it has none, and finds the best one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.measure.bench.result import Interval
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.race import Run, compare
from trtspec.train.tune.score import Score


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
