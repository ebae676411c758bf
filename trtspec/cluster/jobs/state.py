"""Holds the state of a job at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """The phase of a job.

    `lost` means that the scheduler no longer knows the job or how it ended.
    """

    WAITS = "waits"
    RUNS = "runs"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"

    def __str__(self) -> str:
        return self.value

    @property
    def is_over(self) -> bool:
        return self not in (Phase.WAITS, Phase.RUNS)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job as its scheduler reports it."""

    phase: Phase
    reason: str | None = None
    """The reason why it waits, or how it ended."""
    repair: str | None = None
    """The repair."""
    node: str | None = None
    """The node where it runs or ran."""
    restarts: int = 0
    """How often the scheduler has requeued it."""
