"""Defines the interface of a cluster's scheduler."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from trtspec.cluster.jobs.job import ClusterJob
from trtspec.cluster.jobs.state import JobState


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
