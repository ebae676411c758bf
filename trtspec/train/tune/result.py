"""Derives the result of tuning: the best candidate, why others lost, advice, and the new recipe."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from trtspec.base.files import write_atomically
from trtspec.pipeline.plan.resolved import MAX_DRAFT_LEN, MAX_DRAFT_LEN_CPU
from trtspec.recipe import gpus
from trtspec.recipe.edit import edit, places
from trtspec.recipe.loader import LoadedRecipe
from trtspec.train.tune.race import CandidateResult, against, ranked, winner
from trtspec.train.tune.score import CategoryScore

LOW, POOR = 0.6, 0.5
"""The usual advice for speculative decoding: aim for 60 % or more; under 50 % drafts may cost more than they
gain.

That is conditional acceptance, of a token whose predecessors were accepted. The ratio of accepted to drafted
tokens would fall with K.
"""
BETTER = 1.05
"""By what factor another candidate must be faster in a category to be named."""


@dataclass(frozen=True, slots=True)
class TuneResult:
    """The result of a tuning."""

    standings: tuple[CandidateResult, ...]
    """The fastest first."""
    best: CandidateResult | None
    """The best candidate; None if the target alone is faster than all."""
    advice: tuple[CategoryAdvice, ...]
    answers: int
    streams: int
    """The number of sequences at once during the measurement."""
    is_measured: bool
    """True if rounds were timed on this machine; False if their costs come from a plan."""

    @property
    def level_lengths(self) -> list[int]:
        """The other Ks with which the best candidate is not measurably slower."""
        if self.best is None or self.best.run is None:
            return []
        others = self.best.run.scores[1:]
        found = [score.length for score in others if against(self.best, self.best, score).low <= 1.0]
        return sorted(found)


def result_of(
    standings: Sequence[CandidateResult], answers: int, streams: int, *, is_measured: bool
) -> TuneResult:
    """Returns the result of the standings."""
    best = winner(standings)
    advice = tuple(advise(best, standings)) if best else ()
    return TuneResult(tuple(ranked(standings)), best, advice, answers, streams, is_measured)


def why(standing: CandidateResult, found: TuneResult) -> str:
    """Says in a few words why a candidate is best, or why it is not."""
    if standing.refused:
        return standing.refused
    run, best = standing.run, found.best
    assert run is not None
    if standing is best:
        level = found.level_lengths
        return f"the best; K = {', '.join(map(str, level))} is not measurably slower" if level else "the best"
    if run.bound is not None:
        alone = "the target alone has" if run.lead == 1.0 else "the leader has at least"
        bounds = f"at most {run.bound:.2f}x, and {alone} {run.lead:.2f}x"
        return f"stopped after {run.answers} of {found.answers} answers: {bounds}"
    if best is None or run.best.speedup.value <= 1.0:
        return "slower than the target alone"
    other = against(best, standing, run.best)
    if other.low <= 1.0:
        return "not measurably slower than the best"
    return f"the best is {100 * (other.value - 1):.0f} % faster"


def tuned(found: TuneResult, loaded: LoadedRecipe, output: Path) -> Path | None:
    """Writes the recipe of the best candidate and returns its path; None if drafts do not pay.

    Comments and order are kept. Raises RecipeError for a recipe that cannot be changed in this way.
    """
    if found.best is None:
        return None
    changes = _changes(found.best, loaded, output.parent)
    text = edit(loaded.path.read_text(encoding="utf-8-sig"), changes, loaded.path)
    write_atomically(output, text)
    return output


def _changes(best: CandidateResult, loaded: LoadedRecipe, folder: Path) -> dict[str, Any]:
    """Returns the changed keys of the recipe, which is written into `folder`.

    A recipe with the adaptive policy keeps it, and gets room for drafts of the best length.
    """
    assert best.run is not None
    recipe, length = loaded.recipe, best.run.best.length
    speculation = recipe.speculation
    is_elsewhere = folder.resolve() != loaded.path.parent.resolve()
    made = {**(places(loaded, folder) if is_elsewhere else {}), **best.candidate.changes(recipe, folder)}
    if speculation.policy != "adaptive":
        made["speculation.num_draft_tokens"] = length
    longest = MAX_DRAFT_LEN_CPU if recipe.hardware.gpu == gpus.NONE else MAX_DRAFT_LEN
    if (speculation.max_draft_len or longest) < length:
        made["speculation.max_draft_len"] = length
    return made


def as_json(found: TuneResult) -> dict[str, Any]:
    """Returns all of it as plain data."""
    return {
        "answers": found.answers,
        "streams": found.streams,
        "speed": "measured" if found.is_measured else "plan",
        "best": found.best and _standing(found.best, found),
        "level_lengths": found.level_lengths,
        "standings": [_standing(standing, found) for standing in found.standings],
        "advice": [{**asdict(advice), "text": str(advice)} for advice in found.advice],
    }


def _standing(standing: CandidateResult, found: TuneResult) -> dict[str, Any]:
    candidate, run = standing.candidate, standing.run
    draft = candidate.draft
    values: dict[str, Any] = {
        "candidate": candidate.name,
        "method": candidate.method,
        "draft": draft and str(draft.location),
        "precision": draft and draft.precision,
        "layers": draft and draft.layers,
        "why": why(standing, found),
        "answers": run.answers if run else 0,
        "was_stopped": standing.was_stopped,
    }
    if run:
        values["costs"] = asdict(run.costs)
        values["scores"] = [finite(asdict(score)) for score in run.scores]
    return values


def finite(value: Any) -> Any:
    """Returns plain data in which infinite bounds are None, since JSON has no infinity."""
    if isinstance(value, dict):
        return {key: finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if value == math.inf else value


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


def advise(best: CandidateResult, standings: Sequence[CandidateResult]) -> Iterator[CategoryAdvice]:
    """Yields the advice on the best candidate: for all answers first, then for each category."""
    assert best.run is not None
    score = best.run.best
    answers = sum(of_category.answers for of_category in score.by_category.values())
    whole = CategoryScore(answers, score.speedup, score.acceptance)
    groups: dict[str, CategoryScore] = {"": whole}
    if len(score.by_category) > 1:
        groups |= score.by_category
    for category, found in groups.items():
        per_token, of_drafted = found.acceptance.per_token, found.acceptance.of_drafted
        if per_token is None or of_drafted is None or per_token >= LOW:
            continue
        bound = POOR if per_token < POOR else LOW
        rest = found.speedup.value, tuple(_repairs(category, found, best, standings))
        yield CategoryAdvice(category, found.answers, per_token, of_drafted, bound, *rest)


def _repairs(
    category: str, found: CategoryScore, best: CandidateResult, standings: Sequence[CandidateResult]
) -> Iterator[str]:
    if category:
        others = [
            (other, score)
            for other in standings
            if other.run and not other.was_stopped
            for score in other.run.scores
            if category in score.by_category
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
