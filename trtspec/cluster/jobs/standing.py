"""Tracks the jobs of a build: which can be submitted, which can never run, and which are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from trtspec.cluster.jobs.job import ClusterJob
from trtspec.cluster.jobs.state import JobState, Phase

_NOT_SUBMITTED = JobState(Phase.WAITS, "is not submitted yet")


class JobStatus:
    """The jobs in order, with the known ids and states by name."""

    def __init__(self, jobs: Sequence[ClusterJob]) -> None:
        self.jobs = {job.name: job for job in jobs}
        self.ids: dict[str, str] = {}
        self._states: dict[str, JobState] = {}

    def state(self, name: str) -> JobState:
        return self._states.get(name, _NOT_SUBMITTED)

    def has(self, name: str, job_id: str) -> None:
        """Stores the id of a job that waits or runs at the scheduler."""
        self.ids[name] = job_id
        self._states[name] = JobState(Phase.WAITS)

    def learn(self, states: Mapping[str, JobState]) -> list[ClusterJob]:
        """Stores states, by the jobs' ids, and returns the jobs that have changed.

        A job that needs an unsuccessful one counts as cancelled, whatever its scheduler says.
        """
        changed = []
        for name, job in self.jobs.items():
            state = states.get(self.ids.get(name, ""), self.state(name))
            if not self.state(name).phase.is_over and (broken := self._broken(job)):
                was = self.state(broken.name).phase is Phase.CANCELLED
                reason = f"needs {broken.title}, which {'was cancelled' if was else 'has failed'}"
                state = JobState(Phase.CANCELLED, reason)
            if state != self.state(name):
                self._states[name] = state
                changed.append(job)
        return changed

    def ready(self, *, keeps_order: bool) -> list[ClusterJob]:
        """Returns the jobs to submit now: all of them, in order, if the scheduler keeps the order."""
        return [
            job
            for name, job in self.jobs.items()
            if name not in self.ids
            and not self.state(name).phase.is_over
            and (keeps_order or all(self.state(other).phase is Phase.DONE for other in job.after))
        ]

    def ids_before(self, job: ClusterJob) -> list[str]:
        """Returns the ids of the jobs that a job still waits for."""
        return [self.ids[name] for name in job.after if not self.state(name).phase.is_over]

    @property
    def running(self) -> dict[str, ClusterJob]:
        """The jobs that wait or run at the scheduler, by their ids."""
        return {id_: self.jobs[name] for name, id_ in self.ids.items() if not self.state(name).phase.is_over}

    @property
    def is_over(self) -> bool:
        return all(self.state(name).phase.is_over for name in self.jobs)

    @property
    def failed(self) -> list[ClusterJob]:
        """The jobs that have not succeeded."""
        return [job for name, job in self.jobs.items() if self.state(name).phase is not Phase.DONE]

    def _broken(self, job: ClusterJob) -> ClusterJob | None:
        """Returns the first job that this one needs and that did not succeed."""
        for name in job.after:
            phase = self.state(name).phase
            if phase.is_over and phase is not Phase.DONE:
                return self.jobs[name]
        return None
