"""Holds the state of a job at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Phase(str, Enum):
    """The phase of a job.

    `lost` is one that the scheduler no longer knows, and of whose end it kept nothing.
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
    """A job as its scheduler tells of it."""

    phase: Phase
    reason: str | None = None
    """Says in words why it waits or how it ended."""
    repair: str | None = None
    """Says what helps."""
    node: str | None = None
    """The node where it runs or ran."""
    restarts: int = 0
    """The number of times that the scheduler has put it back into the queue."""
