"""Compares candidates by their costs and by what their drafts choose, and drops the slow ones early."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.progress import Progress
from trtspec.recipe.schema import Recipe
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import Candidate, CandidateDraft
from trtspec.train.tune.forced import Forced
from trtspec.train.tune.kept import Kept, KeptChoices
from trtspec.train.tune.race import PLAIN, CandidateResult, Replays, run
from trtspec.train.tune.replay import Choices, replay
from trtspec.train.tune.score import DraftLengthCosts
from trtspec.train.tune.workshop import Workshop

Costing = Callable[[Candidate], DraftLengthCosts]
"""Returns the costs of a candidate's rounds; raises what building it raises."""


class DraftOracle:
    """Runs drafts one after the other, with one at a time in memory."""

    def __init__(
        self, workshop: Workshop, kept: Kept, device: str, vocab_size: int, end_ids: tuple[int, ...]
    ) -> None:
        self._workshop, self._kept = workshop, kept
        self._device, self._vocab_size, self._end_ids = device, vocab_size, end_ids
        self._draft: CandidateDraft | None = None
        self._forced: Forced | None = None
        self._known: KeptChoices | None = None

    def choices(self, draft: CandidateDraft, answers: Sequence[RecordedAnswer]) -> list[Choices]:
        """Returns the draft's choices for each answer; raises what building it raises."""
        built = self._workshop.draft(draft)
        if draft != self._draft:
            self._draft, self._forced = draft, None
            self._known = self._kept.choices(built.digest, self._end_ids[:1])
        assert self._known is not None
        found = []
        for answer in answers:
            choices = self._known.get(answer.digest)
            if choices is None:
                if self._forced is None:
                    self._forced = Forced(built.engine, self._device, self._vocab_size, self._end_ids)
                choices = self._forced.choices(answer)
                self._known.put(answer.digest, choices)
            found.append(choices)
        return found

    def forget(self) -> None:
        """Frees the memory of the last draft."""
        self._draft = self._forced = self._known = None


@dataclass(frozen=True, slots=True)
class Tuner:
    """Measures candidates for a recipe on recorded answers, with every K up to `longest`."""

    recipe: Recipe
    answers: Sequence[RecordedAnswer]
    longest: int
    costing: Costing
    told: DraftOracle
    watch: Progress

    def standings(self, candidates: Sequence[Candidate]) -> list[CandidateResult]:
        """Returns the result of each candidate, in the order of measurement.

        One that cannot be built or does not fit the target is refused. A missing disk, GPU or package ends
        the tuning.
        """
        found: list[CandidateResult] = []
        lead = PLAIN.low
        for candidate in candidates:
            try:
                standing = self._standing(candidate, lead)
            except UnavailableError:
                raise
            except TrtspecError as error:
                standing = CandidateResult(candidate, refused=str(error))
            found.append(standing)
            if standing.run and not standing.was_stopped:
                lead = max(lead, standing.run.best.speedup.low)
        self.told.forget()
        return found

    def _standing(self, candidate: Candidate, lead: float) -> CandidateResult:
        self.told.forget()
        costs, drafting = self.costing(candidate), candidate.drafting(self.recipe)
        with self.watch(f"{candidate.name}: running the draft", len(self.answers)) as advance:

            def measure(answers: Sequence[RecordedAnswer]) -> Replays:
                told: Sequence[Choices | None] = [None] * len(answers)
                if candidate.draft is not None:
                    told = self.told.choices(candidate.draft, answers)
                advance(len(answers))
                return {
                    length: [
                        replay(answer, drafting, None if own is None else [own] * length, length)
                        for answer, own in zip(answers, told, strict=True)
                    ]
                    for length in range(1, self.longest + 1)
                }

            return CandidateResult(candidate, run(self.answers, costs, lead, measure))
