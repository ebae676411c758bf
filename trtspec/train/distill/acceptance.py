"""Measures a draft's acceptance by replaying answers, before and after a training."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.measure.bench.result import Interval
from trtspec.serving.drafters.source import DRAFT_MODEL
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.replay import Choices, Replay, replay
from trtspec.train.tune.score import AcceptanceScore, ratio, t_quantile
from trtspec.train.tune.score import acceptance as acceptance_of


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts of draft tokens of one answer."""

    accepted: int
    reached: int
    """The draft tokens up to the first rejected one, this one included."""
    drafted: int


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """The acceptance of a draft on some answers, which count as a random sample."""

    acceptance: AcceptanceScore
    per_token: Interval
    """That of `acceptance`, with its interval."""
    of_drafted: Interval
    """That of `acceptance`, with its interval."""
    tallies: tuple[Tally, ...]
    """One for each answer."""


def measure(
    answers: Sequence[RecordedAnswer], choices: Sequence[Sequence[Choices]], length: int
) -> AcceptanceEstimate | None:
    """Returns the acceptance with K = `length`; None if nothing was drafted.

    `choices` has the draft's own tokens for each answer, as `replay` takes them.
    """
    replays = [
        replay(answer, DRAFT_MODEL, said, length) for answer, said in zip(answers, choices, strict=True)
    ]
    tallies = tuple(map(_tally, replays))
    if not any(tally.drafted for tally in tallies):
        return None
    accepted = [tally.accepted for tally in tallies]
    return AcceptanceEstimate(
        acceptance_of(replays),
        ratio(accepted, [tally.reached for tally in tallies]),
        ratio(accepted, [tally.drafted for tally in tallies]),
        tallies,
    )


def _tally(replayed: Replay) -> Tally:
    rounds = replayed.rounds.items()
    return Tally(
        sum(times * one.accepted for one, times in rounds),
        sum(times * min(one.accepted + 1, one.length) for one, times in rounds),
        sum(times * one.length for one, times in rounds),
    )


def change(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> Interval:
    """Returns the ratio of a share after the training to the share before, from (part, whole) of each answer.

    The variance is that of the logarithm of a ratio of two ratios, linearized (Cochran, "Sampling
    techniques", section 6.19). So an answer's effect on both sides does not widen the interval. A single
    answer with a whole gives no variance.
    """
    old, tried, new, tried_anew = (
        sum(pair[side] for pair in pairs) for pairs in (before, after) for side in (0, 1)
    )
    if not (old and new):
        return Interval(math.inf if new else 0.0, 0.0, math.inf)
    value = (new / tried_anew) / (old / tried)
    if sum(max(first[1], then[1]) > 0 for first, then in zip(before, after, strict=True)) < 2:
        return Interval(value, 0.0, math.inf)
    parts = [
        then[0] / new - then[1] / tried_anew - first[0] / old + first[1] / tried
        for first, then in zip(before, after, strict=True)
    ]
    error = math.sqrt(len(parts) / (len(parts) - 1) * sum(part * part for part in parts))
    width = math.exp(t_quantile(len(parts) - 1) * error)
    return Interval(value, value / width, value * width)
