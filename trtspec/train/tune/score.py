"""Scores one way of drafting with one K: speed-up and acceptance, overall and by category."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from trtspec.measure.bench.result import Interval
from trtspec.train.tune.answer import RecordedAnswer
from trtspec.train.tune.costs import DraftLengthCosts
from trtspec.train.tune.estimate import ratio
from trtspec.train.tune.replay import Replay


@dataclass(frozen=True, slots=True)
class AcceptanceScore:
    """The acceptance of drafts; shares are None if nothing was drafted."""

    per_token: float | None
    """The share of draft tokens that were accepted once all before them were."""
    of_drafted: float | None
    """Accepted divided by drafted tokens.

    It falls with K, since tokens after a wrong one are drafted in vain.
    """
    by_position: tuple[float | None, ...]
    """The same as `per_token` for each position of a draft."""
    tokens_per_round: float
    """The mean tokens of a round, the target's own included."""


@dataclass(frozen=True, slots=True)
class CategoryScore:
    """One category of answers: their number, the acceptance, and the speed-up."""

    answers: int
    speedup: Interval
    acceptance: AcceptanceScore


@dataclass(frozen=True, slots=True)
class Score:
    """A draft length, its speed-up over the target alone, and its acceptance."""

    length: int
    speedup: Interval
    acceptance: AcceptanceScore
    by_category: Mapping[str, CategoryScore]


def score(
    length: int, answers: Sequence[RecordedAnswer], replays: Sequence[Replay], costs: DraftLengthCosts
) -> Score:
    """Returns the score of the rounds of some answers, at least one, with K = `length`."""
    groups: dict[str, tuple[list[RecordedAnswer], list[Replay]]] = {}
    for answer, replay in zip(answers, replays, strict=True):
        of_category = groups.setdefault(answer.category, ([], []))
        of_category[0].append(answer)
        of_category[1].append(replay)
    return Score(
        length,
        speedup(answers, replays, costs),
        acceptance(replays),
        {
            category: CategoryScore(len(own), speedup(own, came, costs), acceptance(came))
            for category, (own, came) in groups.items()
        },
    )


def speedup(
    answers: Sequence[RecordedAnswer], replays: Sequence[Replay], costs: DraftLengthCosts
) -> Interval:
    """Returns tokens per second with drafts divided by those of the target alone."""
    return ratio([answer.steps for answer in answers], [costs.total(came) for came in replays], costs.error)


def acceptance(replays: Iterable[Replay]) -> AcceptanceScore:
    reached: list[int] = []
    accepted: list[int] = []
    drafted = rounds = given = 0
    for replay in replays:
        for round, count in replay.rounds.items():
            reached += [0] * (round.length - len(reached))
            accepted += [0] * (round.length - len(accepted))
            for position in range(min(round.accepted + 1, round.length)):
                reached[position] += count
                accepted[position] += count * (position < round.accepted)
            drafted += count * round.length
            rounds += count
            given += count * (round.accepted + 1)
    return AcceptanceScore(
        _share(sum(accepted), sum(reached)),
        _share(sum(accepted), drafted),
        tuple(_share(*pair) for pair in zip(accepted, reached, strict=True)),
        given / rounds if rounds else 1.0,
    )


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
