"""Replicas whose queues are in textbooks."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from statistics import fmean

from trtspec.capacity.demand import Lengths
from trtspec.capacity.simulation import FleetOutcome
from trtspec.capacity.tempo import Replica, Turn

STEP_S = 1e-3


@dataclass(frozen=True)
class Flat:
    """A turn takes as long for many texts as for one, so each place is a server of its own."""

    seconds: float = STEP_S
    survival: tuple[float, ...] = ()
    prompt: float = 0.0
    drafting: float = 0.0

    def turn(self, texts: int, context: float) -> Turn:
        return Turn(self.seconds, self.survival, self.drafting)

    def prompt_s(self, tokens: float, has_drafts: bool) -> float:
        return self.prompt * tokens


def mean_end_to_end(outcome: FleetOutcome) -> float:
    return fmean(one.end_to_end for one in outcome.done)


def replica(
    tempo: Flat | None = None, places: int = 4, kv_tokens: int | None = None, most_rows: int = 8192
) -> Replica:
    return Replica(tempo or Flat(), places, kv_tokens, 0, most_rows, 1)


def exponential(mean: float, count: int = 20_000, seed: int = 1) -> Lengths:
    """Answers whose length is exponential, as finely as in tokens, with prompts of one token."""
    dice = random.Random(seed)
    return Lengths(tuple((1, max(1, math.ceil(dice.expovariate(1 / mean)))) for _ in range(count)))
