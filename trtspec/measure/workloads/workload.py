"""Defines a workload: prompts with a name, and the times of requests that do not wait for each other."""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt of a workload."""

    name: str
    """Identifies the prompt in its workload."""
    turns: tuple[str, ...]
    """The messages of the user. Each is sent after the answer to the one before."""
    category: str = ""
    """The kind of prompt."""
    max_tokens: int | None = None
    """The most tokens of the answer; None leaves that to the caller."""
    answer: str = ""
    """The right answer, as text that an answer contains; empty if none is known."""

    @property
    def text(self) -> str:
        """The first turn, which is the whole prompt of most workloads."""
        return self.turns[0]


@dataclass(frozen=True, slots=True)
class Workload:
    """Prompts, at least one, and their origin."""

    name: str
    source: str
    """A file, or how the prompts were made."""
    prompts: tuple[Prompt, ...]

    @property
    def categories(self) -> dict[str, int]:
        """The number of prompts of each category, the largest first."""
        return dict(Counter(prompt.category for prompt in self.prompts).most_common())

    @property
    def digest(self) -> str:
        """Identifies the workload: other prompts, or another order, give another digest."""
        said = [(prompt.turns, prompt.max_tokens) for prompt in self.prompts]
        return hashlib.sha256(json.dumps(said).encode()).hexdigest()[:16]


def arrivals(rate: float, count: int, burstiness: float, seed: int) -> list[float]:
    """Returns `count` ascending times in seconds, from 0.0 on average 1 / `rate` apart.

    `burstiness` is the coefficient of variation of the gaps, squared: 1 is a Poisson process, 0 a clock,
    above 1 comes in bursts. Gaps have a gamma distribution, as in vLLM's `bench serve`, whose burstiness is
    the inverse of this number.
    """
    dice = random.Random(seed)  # noqa: S311
    now, times = 0.0, []
    for _ in range(count):
        times.append(now)
        gap = dice.gammavariate(1 / burstiness, burstiness / rate) if burstiness else 1 / rate
        now += gap if math.isfinite(gap) else 0.0
    return times
