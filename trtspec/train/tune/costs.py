"""Holds the costs of rounds, in steps of the target alone with as many running sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtspec.forecast.speedup import RoundCosts
from trtspec.serving.drafters.source import ENGINE
from trtspec.train.tune.replay import Replay


@dataclass(frozen=True, slots=True)
class DraftLengthCosts:
    """The cost of a round with a draft of 1, 2, … tokens: `drafted` by the engine, or `looked_up`.

    `plain_s` is a step of the target alone, in seconds. `error` is one standard error, relative, of all costs
    together; 0 for what was not measured.
    """

    drafted: tuple[float, ...]
    looked_up: tuple[float, ...]
    plain_s: float
    error: float = 0.0

    def of(self, origin: str, length: int) -> float:
        """Returns the cost of one round; a draft that says nothing takes the time of one token."""
        return (self.drafted if origin == ENGINE else self.looked_up)[max(length, 1) - 1]

    def total(self, replay: Replay) -> float:
        """Returns the cost of all that was done for an answer."""
        rounds = replay.rounds.items()
        return replay.alone + sum(count * self.of(round.origin, round.length) for round, count in rounds)


def of_lengths(costs: Callable[[int], RoundCosts], longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, of which `costs` says what it consists."""
    return tuple(costs(length).of(length) for length in range(1, longest + 1))


def line(costs: RoundCosts, longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, on one line."""
    return of_lengths(lambda _: costs, longest)
