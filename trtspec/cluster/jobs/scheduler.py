"""Defines what a cluster's scheduler must do for builds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from trtspec.cluster.jobs.job import ClusterJob
from trtspec.cluster.jobs.state import JobState


class JobScheduler(Protocol):
    """Runs jobs, each once the jobs that it waits for have succeeded; what it calls them are their ids.

    Every method raises UnavailableError if the scheduler cannot be asked, and JobError for what it refuses.
    """

    @property
    def name(self) -> str:
        """Its name for people."""
        ...

    @property
    def shares_files(self) -> bool:
        """True if a job finds the files that another has left, on whichever node; else each job does all
        steps.
        """
        ...

    @property
    def keeps_order(self) -> bool:
        """True if it holds a job back until others have succeeded; else it gets a job only then."""
        ...

    def script(self, job: ClusterJob) -> str:
        """Returns what is handed over for a job, for people to read; its dependencies are not in it."""
        ...

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        """Returns, by name, the ids of those jobs of this user that wait or run."""
        ...

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        """Hands a job over, to begin when the jobs with these ids have succeeded; returns its id."""
        ...

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        """Returns, by id, what is known of jobs; brings to `log` what they have said since, if need be."""
        ...

    def cancel(self, ids: Collection[str]) -> None:
        """Ends these jobs, whether they wait or run; one that is over already is no failure."""
        ...

    def how_to_cancel(self, ids: Collection[str]) -> str:
        """Returns the command line with which a person cancels these jobs."""
        ...
