"""Holds the costs of rounds, in steps of the target alone with as many running sequences."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtspec.forecast.speedup import RoundCosts
from trtspec.serving.drafters.source import ENGINE
from trtspec.train.tune.replay import Replay


@dataclass(frozen=True, slots=True)
class DraftLengthCosts:
    """The costs of rounds, in steps of the target alone; item n - 1 is for a draft of n tokens."""

    drafted: tuple[float, ...]
    """Rounds whose draft comes from an engine."""
    looked_up: tuple[float, ...]
    """Rounds whose draft comes from a look-up."""
    plain_s: float
    """A step of the target alone, in seconds."""
    error: float = 0.0
    """The relative standard error of all costs together; 0 if they were not measured."""

    def of(self, origin: str, length: int) -> float:
        """Returns the cost of one round; an empty draft takes the time of one token."""
        return (self.drafted if origin == ENGINE else self.looked_up)[max(length, 1) - 1]

    def total(self, replay: Replay) -> float:
        """Returns the total cost of an answer."""
        rounds = replay.rounds.items()
        return replay.alone + sum(count * self.of(round.origin, round.length) for round, count in rounds)


def of_lengths(costs: Callable[[int], RoundCosts], longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, from the parts in `costs`."""
    return tuple(costs(length).of(length) for length in range(1, longest + 1))


def line(costs: RoundCosts, longest: int) -> tuple[float, ...]:
    """Returns the cost of a round of each length up to `longest`, on one line."""
    return of_lengths(lambda _: costs, longest)
