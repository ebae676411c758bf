"""Schedules builds on Slurm by sbatch, squeue, scontrol, scancel, and sacct if there is accounting."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from trtspec.base.errors import TrtspecError
from trtspec.cluster.jobs.job import ClusterJob
from trtspec.cluster.jobs.state import JobState, Phase
from trtspec.cluster.slurm import reading, submission
from trtspec.cluster.slurm.command import run, run_if_known

_FORGOTTEN = JobState(Phase.LOST, "Slurm no longer knows how it ended, and keeps no accounts")


class SlurmScheduler:
    """The scheduler of the cluster whose login node this machine is.

    `python` runs trtspec on the nodes, and `caches` are folders for downloads, by the variables that name
    them. Both are on a file system that the nodes share with this machine.
    """

    name = "Slurm"
    shares_files = True
    keeps_order = True

    def __init__(self, python: str, caches: Mapping[str, Path]) -> None:
        self._python, self._caches = python, caches

    def script(self, job: ClusterJob) -> str:
        command = shlex.join((submission.SBATCH, *submission.words(job, ())))
        return f"{command} <<'END'\n{submission.script(job, self._python, self._caches)}END"

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for row in self._queue(names):
            # Of two jobs with one name the older runs first.
            if row.state in reading.ACTIVE and (row.name not in found or int(row.id) < int(found[row.name])):
                found[row.name] = row.id
        return found

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        for folder in (job.log.parent, *self._caches.values()):
            folder.mkdir(parents=True, exist_ok=True)  # Neither sbatch nor pyxis creates a missing folder.
        script = submission.script(job, self._python, self._caches)
        said = run(submission.SBATCH, *submission.words(job, after), stdin=script)
        return said.strip().partition(";")[0]

    def states(self, jobs: Mapping[str, ClusterJob]) -> Mapping[str, JobState]:
        if not jobs:
            return {}
        queue = {row.id: row for row in self._queue([job.name for job in jobs.values()])}
        return {job_id: self._state(job_id, queue.get(job_id)) for job_id in jobs}

    def cancel(self, ids: Collection[str]) -> None:
        run("scancel", *ids)

    def how_to_cancel(self, ids: Collection[str]) -> str:
        return shlex.join(("scancel", *ids))

    def _queue(self, names: Collection[str]) -> list[reading.QueueRow]:
        return reading.rows(
            run(
                "squeue",
                *("--me", "--noheader", "--states=all", f"--name={','.join(names)}"),
                f"--format={reading.SQUEUE_FORMAT}",
            )
        )

    def _state(self, job_id: str, row: reading.QueueRow | None) -> JobState:
        if row and row.state in reading.ACTIVE:
            return reading.waiting(row)
        said = run_if_known("scontrol", "show", "job", "--oneliner", job_id)
        if said:
            now = reading.end(said)
            # It was requeued after squeue's answer; the next answer has it again.
            return JobState(Phase.WAITS, "is requeued") if now.state in reading.ACTIVE else reading.over(now)
        found = reading.accounted(_accounts(job_id))
        # Accounting may be late: it may still call a job running that Slurm has already forgotten.
        return reading.over(found) if found and found.state not in reading.ACTIVE else _FORGOTTEN


def _accounts(job_id: str) -> str:
    """Returns sacct's end of a job; None without sacct or without accounting."""
    words = ("--allocations", "--noheader", "--parsable2", "--duplicates")
    try:
        return run("sacct", *words, f"--jobs={job_id}", f"--format={reading.SACCT_FORMAT}")
    except TrtspecError:
        return ""
