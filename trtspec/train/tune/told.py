"""Gets drafts' choices for answers: from the disk, or from one pass of the draft over each answer."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import CandidateDraft
from trtspec.train.tune.forced import Forced
from trtspec.train.tune.kept import Kept, KeptChoices
from trtspec.train.tune.replay import Choices
from trtspec.train.tune.workshop import Workshop


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
            self._draft, self._forced, self._known = draft, None, self._kept.choices(built.digest)
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
