"""Answers, costs and what a draft says, made up so that what must come out is known."""

from __future__ import annotations

import random
from collections.abc import Sequence

from trtspec.forecast.speedup import RoundCosts
from trtspec.serving.drafters.source import DRAFT_MODEL
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.race import Replays
from trtspec.train.tune.replay import replay
from trtspec.train.tune.score import DraftLengthCosts, line

LONGEST = 8
WRONG = 1


def answers(count: int, tokens: int = 60, category: str = "") -> list[RecordedAnswer]:
    """Answers that are all different."""
    return [
        RecordedAnswer(f"{category}{number}", category, (number + 10,), tuple(range(10, 10 + tokens)), False)
        for number in range(count)
    ]


def costs(draft: float, error: float = 0.0) -> DraftLengthCosts:
    free = RoundCosts(0.0, overhead=0.1, verified=0.01)
    return DraftLengthCosts(
        line(RoundCosts(draft, overhead=0.1, verified=0.01), LONGEST), line(free, LONGEST), 0.01, error
    )


class Drafting:
    """A draft that is right so often; `seen` are the answers that it was asked about."""

    def __init__(self, right: float, seed: int = 1) -> None:
        self._right, self._dice, self.seen = right, random.Random(seed), list[RecordedAnswer]()

    def __call__(self, asked: Sequence[RecordedAnswer]) -> Replays:
        self.seen += asked
        told = [
            [token if self._dice.random() < self._right else WRONG for token in answer.tokens]
            for answer in asked
        ]
        return {
            length: [
                replay(answer, DRAFT_MODEL, [choices] * length, length)
                for answer, choices in zip(asked, told, strict=True)
            ]
            for length in range(1, LONGEST + 1)
        }
