"""Defines a workload: prompts with a name."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass

from trtspec.measure.workloads.prompt import Prompt


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
