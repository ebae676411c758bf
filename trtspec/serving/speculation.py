"""How well drafts did, in vLLM's terms."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class Speculation:
    """Counts over one completion, or over all of them.

    A step is one verification of a draft that is not empty. `accepted_per_position[i]` counts the steps whose
    draft token i (from 0) was accepted; it is as long as the longest draft.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def record(self, num_draft: int, num_accepted: int) -> None:
        """Adds one verification: `num_accepted` of `num_draft` tokens survived."""
        self.num_spec_steps += 1
        self.num_draft_tokens += num_draft
        self.num_accepted_draft_tokens += num_accepted
        positions = self.accepted_per_position
        if len(positions) < num_draft:
            positions.extend([0] * (num_draft - len(positions)))
        for position in range(num_accepted):
            positions[position] += 1

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens won by a verification: the accepted ones and the target's own; 0.0 before the first."""
        if not self.num_spec_steps:
            return 0.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted of all draft tokens, 0 to 1; 0.0 before the first."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens
