"""Defines a workload: prompts with a name. A prompt is a user's messages, in one turn or several."""

from __future__ import annotations

import hashlib
import json
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
