"""Schedules builds on Slurm by sbatch, squeue, scontrol, scancel, and sacct if there is accounting."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from trtspec.base.causes import Cause, find_cause
from trtspec.base.errors import JobError, TrtspecError, UnavailableError
from trtspec.cluster.jobs.job import ClusterJob, JobState, Phase
from trtspec.cluster.slurm import reading, submission
from trtspec.cluster.tool import run_tool

_SILENT = (
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Zero Bytes were transmitted"
)
_CONFIGURATION = r"[Uu]nable to (establish|process) configuration source|resolve_ctls_from_dns_srv"
_ELSEWHERE = "run this where jobs are submitted, on the cluster's login node"
_PREFIX = re.compile(r"^(\w+: )?(error|fatal): ")

CAUSES = (
    Cause(
        r"Invalid partition|invalid partition",
        "there is no such partition",
        "sinfo shows them; the recipe names one in slurm.partition and slurm.cpu_partition",
    ),
    Cause(
        r"Requested node configuration is not available",
        "no node of the partition has what the job requests",
        "sinfo -o '%P %N %c %m %G' shows the nodes; change slurm.partition, slurm.gpu_type or slurm.options",
    ),
    Cause(
        r"Memory specification can not be satisfied|CPU count per node can not be satisfied",
        "no node of the partition has so much memory, or so many processors",
        "sinfo -o '%P %N %c %m' shows the nodes; set mem and cpus-per-task in slurm.options of the recipe, "
        "where mem: 0 asks for all of a node",
    ),
    Cause(
        r"Invalid account",
        "the account may not use this partition",
        "sacctmgr show associations user=$USER shows those that may; the recipe names one in slurm.account",
    ),
    Cause(
        r"[Ii]nvalid qos|Invalid QOS",
        "this account may not use this quality of service in this partition",
        "change qos in slurm.options",
    ),
    Cause(
        r"[Tt]ime limit is invalid|time limit .*exceeds",
        "the time limit is longer than the partition allows",
        "sinfo -o '%P %l' shows the partitions' limits; change slurm.time in the recipe",
    ),
    Cause(
        r"QOS\w+|violates accounting/QOS policy|AssocMaxSubmitJobLimit",
        "the account's limits do not allow another job",
        "wait until other jobs end, and run the same command again",
    ),
    Cause(
        r"unrecognized option '(--[\w-]+)",
        "this Slurm has no option {0}",
        "remove it from slurm.options of the recipe",
    ),
)
_FORGOTTEN = JobState(Phase.LOST, "Slurm no longer knows how it ended, and keeps no accounts")


def run(command: str, *words: str, stdin: str = "") -> str:
    """Returns the output of a command of Slurm.

    Raises UnavailableError if Slurm does not answer, and JobError if it refuses.
    """
    result = run_tool(command, *words, stdin=stdin, repair=_ELSEWHERE)
    if result.returncode:
        raise explained(command, result.stderr or result.stdout)
    return result.stdout


def run_if_known(command: str, *words: str) -> str | None:
    """Returns the output of a command about a job; None if Slurm no longer knows the job.

    Raises UnavailableError if Slurm does not answer.
    """
    result = run_tool(command, *words, stdin="", repair=_ELSEWHERE)
    if result.returncode == 0:
        return result.stdout
    error = explained(command, result.stderr)
    if isinstance(error, UnavailableError):
        raise error
    return None


def explained(command: str, said: str) -> TrtspecError:
    """Returns the error for the output of a failed command of Slurm."""
    if re.search(_SILENT, said):
        return UnavailableError(
            "Slurm", "its controller does not answer", "scontrol ping names the controller"
        )
    if re.search(_CONFIGURATION, said):
        return UnavailableError(
            "Slurm", "is installed here, but not configured", f"{_ELSEWHERE}; or set SLURM_CONF"
        )
    if known := find_cause(CAUSES, said):
        return JobError(command, *known)
    first = next((line for line in said.splitlines() if line.strip()), "failed without a message")
    return JobError(command, _PREFIX.sub("", first))


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
