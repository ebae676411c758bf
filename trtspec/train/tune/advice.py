"""Finds categories with low acceptance, and suggests remedies; pure.

The bounds are the usual advice for speculative decoding: aim for 60 % or more; under 50 % drafts may cost
more than they gain. They hold for conditional acceptance, of a token whose predecessors were accepted. The
ratio of accepted to drafted tokens would fall with K.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from trtspec.train.tune.score import CategoryScore, Score
from trtspec.train.tune.standing import CandidateResult

LOW, POOR = 0.6, 0.5
BETTER = 1.05
"""By what factor another candidate must be faster in a category to be named."""


@dataclass(frozen=True, slots=True)
class CategoryAdvice:
    """A category in which too few draft tokens are accepted, and the remedies."""

    category: str
    """Empty for all answers."""
    answers: int
    per_token: float
    of_drafted: float
    bound: float
    """The conditional acceptance that the category does not reach."""
    speedup: float
    repairs: tuple[str, ...]
    """The remedies, in words."""

    def __str__(self) -> str:
        where = f"{self.category} ({self.answers} answers)" if self.category else "in all"
        found = (
            f"{self.per_token:.0%} of draft tokens accepted ({self.of_drafted:.0%} of all that were drafted)"
        )
        return f"{where}: {found}, under {self.bound:.0%}; {self.speedup:.2f}x. {'; or '.join(self.repairs)}"


def advise(best: CandidateResult, standings: Sequence[CandidateResult]) -> list[CategoryAdvice]:
    """Returns the advice on the best candidate: for all answers first, then for each category."""
    assert best.run is not None
    score = best.run.best
    answers = sum(of_category.answers for of_category in score.by_category.values())
    whole = CategoryScore(answers, score.speedup, score.acceptance)
    groups: dict[str, CategoryScore] = {"": whole}
    if len(score.by_category) > 1:
        groups |= score.by_category
    return list(_advices(groups, best, standings))


def _advices(
    groups: Mapping[str, CategoryScore], best: CandidateResult, standings: Sequence[CandidateResult]
) -> Iterator[CategoryAdvice]:
    for category, found in groups.items():
        per_token, of_drafted = found.acceptance.per_token, found.acceptance.of_drafted
        if per_token is None or of_drafted is None or per_token >= LOW:
            continue
        bound = POOR if per_token < POOR else LOW
        repairs = tuple(_repairs(category, found, best, standings))
        yield CategoryAdvice(
            category, found.answers, per_token, of_drafted, bound, found.speedup.value, repairs
        )


def _repairs(
    category: str, found: CategoryScore, best: CandidateResult, standings: Sequence[CandidateResult]
) -> Iterator[str]:
    if category:
        others = [
            (other, score) for other in standings for score in _scores(other) if category in score.by_category
        ]
        if others:
            other, score = max(others, key=lambda pair: pair[1].by_category[category].speedup.value)
            faster = score.by_category[category].speedup.value
            if other is not best and faster > BETTER * max(found.speedup.value, 1.0):
                yield f"{other.candidate.name} with K = {score.length} has {faster:.2f}x in this category"
        if found.speedup.value < 1.0:
            yield "drafts cost more than they gain here: send num_draft_tokens 0 with such requests"
    draft = best.candidate.draft
    if draft is None:
        yield "a draft model is better for texts without repetitions: try some with --draft"
    else:
        yield "`trtspec distill` teaches the draft the target's own answers"
        yield "try other drafts with --draft"


def _scores(standing: CandidateResult) -> tuple[Score, ...]:
    """Returns the scores of a candidate that was measured on all answers."""
    return standing.run.scores if standing.run and not standing.was_stopped else ()
