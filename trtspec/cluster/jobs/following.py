"""Submits jobs to a scheduler and follows them to their end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from time import monotonic, sleep
from typing import Protocol

from trtspec.base.errors import UnavailableError
from trtspec.cluster.jobs.job import ClusterJob
from trtspec.cluster.jobs.scheduler import JobScheduler
from trtspec.cluster.jobs.standing import JobStatus
from trtspec.cluster.jobs.state import JobState, Phase
from trtspec.pipeline.store.store import Store

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
