"""Defines the interface of a cluster's scheduler, and the state of a job that it reports."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from trtspec.cluster.jobs.job import ClusterJob


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


class JobScheduler(Protocol):
    """Runs each job once the jobs that it waits for have succeeded.

    The scheduler gives the ids of jobs. Every method raises UnavailableError if the scheduler does not
    answer, and JobError if it refuses.
    """

    @property
    def name(self) -> str:
        """The scheduler's name for people."""
        ...

    @property
    def shares_files(self) -> bool:
        """True if a job on any node finds the files of the others; else each job does all steps."""
        ...

    @property
    def keeps_order(self) -> bool:
        """True if the scheduler holds a job back until others have succeeded; else a job is submitted only
        then."""
        ...

    def script(self, job: ClusterJob) -> str:
        """Returns what is submitted for a job, for people to read, without its dependencies."""
        ...

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """Returns the ids of this user's waiting or running jobs, by name."""
        ...

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        """Submits a job that starts when the jobs with these ids have succeeded; returns its id."""
        ...

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        """Returns the states of jobs, by id; appends their new output to `log` if the scheduler does not."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Cancels these jobs, waiting or running; a job that has ended already is no failure."""
        ...

    def how_to_cancel(self, ids: Collection[str]) -> str:
        """Returns the command line that cancels these jobs."""
        ...
