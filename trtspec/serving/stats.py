"""Counters of the coordinator, and of how well drafts do in vLLM's terms."""

from __future__ import annotations

from dataclasses import dataclass, field

from trtspec.serving.drafters.source import ORIGINS


@dataclass(slots=True)
class SpeculationCounts:
    """The counts of verifications, over one completion or over all of them.

    A step is one verification of a draft that is not empty. `accepted_per_position[i]` counts the steps whose
    draft token i (from 0) was accepted; it is as long as the longest draft.
    """

    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    accepted_per_position: list[int] = field(default_factory=list)

    def record(self, num_draft: int, num_accepted: int) -> None:
        """Adds one verification, which accepted `num_accepted` of `num_draft` tokens."""
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
        """Returns the mean number of tokens a verification gives, the target's own included; 0.0 for none."""
        if not self.num_spec_steps:
            return 0.0
        return 1 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Returns the accepted share of all draft tokens, 0 to 1; 0.0 before the first."""
        if not self.num_draft_tokens:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens


@dataclass(slots=True)
class Stats:
    """The coordinator's counters.

    `running`, `waiting`, `longest_wait_s` and `draft_available` describe the present; the others count since
    the start. `running` completions have a place at the engines, `waiting` ones do not yet, `refused` ones
    got none, and `timed_out` ones were not complete in time. `speculation` is the sum of `by_origin`,
    whose keys are `ORIGINS`.
    """

    speculation: SpeculationCounts = field(default_factory=SpeculationCounts)
    by_origin: dict[str, SpeculationCounts] = field(
        default_factory=lambda: {origin: SpeculationCounts() for origin in ORIGINS}
    )
    draft_failures: int = 0
    draft_available: bool = True
    running: int = 0
    waiting: int = 0
    longest_wait_s: float = 0.0
    refused: int = 0
    timed_out: int = 0

    def record(self, origin: str, num_draft: int, num_accepted: int) -> None:
        """Adds one verification of a draft of that origin."""
        self.speculation.record(num_draft, num_accepted)
        self.by_origin[origin].record(num_draft, num_accepted)
