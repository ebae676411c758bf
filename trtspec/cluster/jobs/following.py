"""Submits jobs to a scheduler and follows them to their end: which can be submitted, run, or are left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Protocol

from trtspec.base.errors import UnavailableError
from trtspec.cluster.jobs.job import ClusterJob, JobScheduler, JobState, Phase
from trtspec.pipeline.store.store import Store

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
            ended = (other for other in job.after if self.state(other).phase.is_over)
            broken = next((other for other in ended if self.state(other).phase is not Phase.DONE), None)
            if broken and not self.state(name).phase.is_over:
                was = self.state(broken).phase is Phase.CANCELLED
                reason = f"needs {self.jobs[broken].title}, which {'was cancelled' if was else 'has failed'}"
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


_SHORTEST_S, _LONGEST_S = 1.0, 10.0
_PATIENCE_S = 600.0  # a controller restarts within this time


class JobListener(Protocol):
    """Is notified of the progress of jobs."""

    def submitted(self, job: ClusterJob, job_id: str) -> None: ...

    def found(self, job: ClusterJob, job_id: str) -> None:
        """Called for a waiting or running job that an earlier call submitted."""
        ...

    def changed(self, job: ClusterJob, state: JobState) -> None: ...

    def looked(self) -> None:
        """Called after each answer of the scheduler."""
        ...

    def unanswered(self, error: UnavailableError) -> None:
        """Called when the scheduler could not be asked, and will be asked again."""
        ...


def follow(standing: JobStatus, scheduler: JobScheduler, store: Store, listener: JobListener) -> None:
    """Submits the jobs that are not there yet and returns when every job has ended, successfully or not.

    The scheduler is asked once a second at first and every ten seconds later. Ctrl-C leaves the jobs as they
    are. Once the scheduler has answered, it may be silent for ten minutes. Raises what the scheduler raises,
    and StoreError.
    """
    begin = answered = monotonic()
    for name, job_id in scheduler.find(standing.jobs).items():
        standing.has(name, job_id)
        listener.found(standing.jobs[name], job_id)
    while True:
        running = dict[str, ClusterJob]()
        try:
            for job in standing.ready(keeps_order=scheduler.keeps_order):
                standing.has(job.name, scheduler.submit(job, standing.ids_before(job)))
                listener.submitted(job, standing.ids[job.name])
            running = standing.running
            said = scheduler.states(running)
            answered = monotonic()
        except UnavailableError as error:
            if monotonic() - answered > _PATIENCE_S:
                raise
            listener.unanswered(error)
            said = {}
        states = {job_id: _settled(running[job_id], state, store) for job_id, state in said.items()}
        for job in standing.learn(states):
            listener.changed(job, standing.state(job.name))
        listener.looked()
        if standing.is_over:
            return
        sleep(min(max((monotonic() - begin) / 20, _SHORTEST_S), _LONGEST_S))


def _settled(job: ClusterJob, state: JobState, store: Store) -> JobState:
    """Returns the state of a job; for one that the scheduler has forgotten, the store decides.

    A job that leaves nothing in the store may have succeeded or failed: the job that needs it repeats what is
    missing.
    """
    if state.phase is not Phase.LOST:
        return state
    if job.product is None or store.find(job.product.platform, job.product.key):
        return replace(state, phase=Phase.DONE)
    return replace(state, phase=Phase.FAILED)


def cancel(standing: JobStatus, scheduler: JobScheduler) -> Sequence[str]:
    """Cancels every job that waits or runs, even one whose id never arrived here; returns the ids."""
    ids = list(dict.fromkeys((*standing.running, *scheduler.find(standing.jobs).values())))
    if ids:
        scheduler.cancel(ids)
    return ids
