"""A scheduler in memory whose jobs end as a test says."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from trtspec.cluster.jobs import ClusterJob, JobState, Phase


class FakeScheduler:
    """Runs a job when those before it are done; `outcome` says what becomes of a job that runs."""

    name = "fake"

    def __init__(
        self,
        outcome: Callable[[ClusterJob], JobState],
        *,
        keeps_order: bool = True,
        queue: Mapping[str, str] | None = None,
    ) -> None:
        self.shares_files, self.keeps_order = True, keeps_order
        self._outcome = outcome
        self.queue = dict(queue or {})
        self.submitted: list[tuple[str, tuple[str, ...]]] = []
        self.cancelled: list[str] = []
        self._over: dict[str, JobState] = {}

    def script(self, job: ClusterJob) -> str:
        return " ".join(job.arguments)

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        return {name: job_id for name, job_id in self.queue.items() if name in names}

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        assert job.name not in self.queue
        assert set(after) <= set(self.queue.values()) | set(self._over)
        self.queue[job.name] = job_id = f"id-{len(self.submitted)}"
        self.submitted.append((job.title, tuple(after)))
        return job_id

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        states = {}
        for job_id, job in jobs.items():
            before = [self._over.get(self.queue.get(name, "")) for name in job.after if name in self.queue]
            if any(state is None or state.phase not in (Phase.DONE, Phase.LOST) for state in before):
                states[job_id] = JobState(Phase.WAITS, "waits for others")
                continue
            states[job_id] = self._outcome(job)
            if states[job_id].phase.is_over:
                self._over[job_id] = states[job_id]
        return states

    def cancel(self, ids: Collection[str]) -> None:
        self.cancelled += ids

    def how_to_cancel(self, ids: Collection[str]) -> str:
        return " ".join(["fake-cancel", *ids])
