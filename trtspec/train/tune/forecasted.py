"""Predicts the costs of rounds on the recipe's GPUs by the plan's model, for engines that do not run here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.base.errors import UnavailableError
from trtspec.forecast.roofline import BatchLoad, step
from trtspec.pipeline.plan.speed import pair_of, unforeseeable
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.candidate import Candidate
from trtspec.train.tune.costs import DraftLengthCosts, of_lengths
from trtspec.train.tune.workshop import Workshop


class Forecasted:
    """Computes the costs of a candidate's rounds with `streams` sequences of the length of `answers`."""

    def __init__(
        self, workshop: Workshop, answers: Sequence[RecordedAnswer], streams: int, longest: int
    ) -> None:
        self._workshop, self._longest = workshop, longest
        tokens = sum(len(answer.prompt) + len(answer.tokens) // 2 for answer in answers)
        self._load = BatchLoad(streams, tokens // len(answers))

    def __call__(self, candidate: Candidate) -> DraftLengthCosts:
        """Returns the costs; raises UnavailableError for engines without a forecast."""
        resolved = self._workshop.plan(candidate).resolved
        if reason := unforeseeable(resolved):
            raise UnavailableError("--speed plan", reason, "measure here, with --speed measured")
        pair = pair_of(resolved, self._longest)
        free = replace(pair, draft=None)
        return DraftLengthCosts(
            of_lengths(lambda length: pair.costs(self._load, length), self._longest),
            of_lengths(lambda length: free.costs(self._load, length), self._longest),
            step(pair.target, pair.chip, self._load).seconds,
        )
