"""Schedules builds on Slurm by sbatch, squeue, scontrol, scancel, and sacct if there is accounting."""

from __future__ import annotations

import math
import re
import shlex
import signal
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from trtspec.base.causes import Cause, find_cause, signal_name
from trtspec.base.errors import JobError, TrtspecError, UnavailableError
from trtspec.base.units import GIB
from trtspec.cluster.jobs import CPUS, ClusterJob, JobState, Phase
from trtspec.cluster.tool import run_tool
from trtspec.recipe.schema import SLURM_ANY

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
SQUEUE_FORMAT = "%A|%j|%T|%N|%r"
SACCT_FORMAT = "State,ExitCode,NodeList"

_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})
_HELD = frozenset({"SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED"})
_WAITS = _HELD | _QUEUED | {"CONFIGURING", "SUSPENDED", "STOPPED"}
ACTIVE = _RUNS | _WAITS
"""The states of jobs that are not over, from Slurm's manual (squeue, JOB STATE CODES)."""

SBATCH = "sbatch"

_CPU = "cpus-per-task"
# Options of sbatch that request the same thing: if the recipe has one, trtspec adds none.
_MEMORIES, _PROCESSORS = frozenset({"mem", "mem-per-cpu", "mem-per-gpu"}), frozenset({_CPU, "cpus-per-gpu"})
# Open MPI takes a process with these variables for a rank started by srun, and ends it if srun has no PMI
# server for it (its components schizo/slurm and ess/pmi). Importing mpi4py is enough for that, and
# TensorRT-LLM imports it.
_OF_RANKS = (
    *("SLURM_STEPID", "SLURM_STEP_ID", "PMI_FD", "PMI_JOBID", "PMI_RANK", "PMI_SIZE"),
    *("PMIX_NAMESPACE", "PMIX_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
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
        command = shlex.join((SBATCH, *sbatch_words(job, ())))
        return f"{command} <<'END'\n{sbatch_script(job, self._python, self._caches)}END"

    def find(self, names: Collection[str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for row in self._queue(names):
            # Of two jobs with one name the older runs first.
            if row.state in ACTIVE and (row.name not in found or int(row.id) < int(found[row.name])):
                found[row.name] = row.id
        return found

    def submit(self, job: ClusterJob, after: Sequence[str]) -> str:
        for folder in (job.log.parent, *self._caches.values()):
            folder.mkdir(parents=True, exist_ok=True)  # Neither sbatch nor pyxis creates a missing folder.
        script = sbatch_script(job, self._python, self._caches)
        said = run(SBATCH, *sbatch_words(job, after), stdin=script)
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

    def _queue(self, names: Collection[str]) -> list[QueueRow]:
        return queue_rows(
            run(
                "squeue",
                *("--me", "--noheader", "--states=all", f"--name={','.join(names)}"),
                f"--format={SQUEUE_FORMAT}",
            )
        )

    def _state(self, job_id: str, row: QueueRow | None) -> JobState:
        if row and row.state in ACTIVE:
            return waiting_state(row)
        said = run_if_known("scontrol", "show", "job", "--oneliner", job_id)
        if said:
            now = job_end(said)
            # It was requeued after squeue's answer; the next answer has it again.
            return JobState(Phase.WAITS, "is requeued") if now.state in ACTIVE else end_state(now)
        found = accounted_end(_accounts(job_id))
        # Accounting may be late: it may still call a job running that Slurm has already forgotten.
        return end_state(found) if found and found.state not in ACTIVE else _FORGOTTEN


def _accounts(job_id: str) -> str:
    """Returns sacct's end of a job; None without sacct or without accounting."""
    words = ("--allocations", "--noheader", "--parsable2", "--duplicates")
    try:
        return run("sacct", *words, f"--jobs={job_id}", f"--format={SACCT_FORMAT}")
    except TrtspecError:
        return ""


class QueueRow(NamedTuple):
    """A job in squeue's table."""

    id: str
    name: str
    state: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class End:
    """The end of a job."""

    state: str
    """Slurm's name of the state."""
    status: int
    """The exit status of the job's script."""
    signal: int
    """The signal that ended the script; 0 for none."""
    node: str
    """The node that it ran on."""
    reason: str = ""
    """Slurm's name of the reason."""
    restarts: int = 0
    """The number of times that Slurm has started it again."""


def queue_rows(output: str) -> list[QueueRow]:
    """Returns the rows that squeue has printed in SQUEUE_FORMAT."""
    return [QueueRow(*line.split("|", 4)) for line in output.splitlines() if line.count("|") >= 4]


def job_end(output: str) -> End:
    """Returns the end of a job from `scontrol show job --oneliner`.

    The values that are read come before those that may contain blanks.
    """
    found = {key: match[1] if (match := re.search(rf"(?:^|\s){key}=(\S*)", output)) else "" for key in _KEYS}
    status, number = _numbers(found["ExitCode"])
    return End(
        state=found["JobState"],
        status=status,
        signal=number,
        node=_named(found["NodeList"]),
        reason=found["Reason"].replace("_", " "),
        restarts=int(found["Restarts"] or 0),
    )


def accounted_end(output: str) -> End | None:
    """Returns the end of a job from sacct's output in SACCT_FORMAT; None if accounting does not have the
    job."""
    lines = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
    if not lines:
        return None
    # A requeued job has a line for each run; the last line is its end.
    state, code, node = lines[-1]
    status, number = _numbers(code)
    return End(state.split()[0], status, number, _named(node), restarts=len(lines) - 1)


def waiting_state(row: QueueRow) -> JobState:
    """Returns the state of a job that has not ended."""
    if row.state in _RUNS:
        return JobState(Phase.RUNS, node=row.node or None)
    return JobState(Phase.WAITS, _reason(row))


def end_state(found: End) -> JobState:
    """Returns the state of a job that has ended, with the reason in words and the repair."""
    phase, reason, repair = _verdict(found)
    return JobState(phase, reason, repair, found.node or None, found.restarts)


def _verdict(found: End) -> tuple[Phase, str | None, str | None]:
    if found.state == "COMPLETED":
        return Phase.DONE, None, None
    if found.state == "CANCELLED":
        if "Dependency" in found.reason:
            return Phase.CANCELLED, "a job that it needs did not succeed", None
        return Phase.CANCELLED, "was cancelled in Slurm", None
    if found.state in _ENDS:
        return Phase.FAILED, *_ENDS[found.state]
    if "BadConstraints" in found.reason.replace(" ", ""):
        return Phase.FAILED, *_REFUSED
    if found.signal:
        again = "the same command continues where it was killed"
        return Phase.FAILED, f"was killed by {signal_name(found.signal)}", again
    if found.status - 128 in signal.valid_signals():
        return Phase.FAILED, f"was killed by {signal_name(found.status - 128)}", None
    if found.status:
        return Phase.FAILED, f"ended with status {found.status}", None
    return Phase.FAILED, f"ended as {found.state or 'unknown'}: {found.reason or 'no reason'}", None


def _reason(row: QueueRow) -> str:
    """Returns in words why a job waits."""
    if row.state in _HELD:
        return f"is held: scontrol release {row.id}"
    if row.state not in _QUEUED:
        return row.state.lower()
    word, _, more = row.reason.partition(",")
    if words := _REASONS.get(word.strip()):
        nodes = more.partition("UnavailableNodes:")[2].strip()
        return f"{words} ({nodes})" if nodes else words
    return row.reason or "Slurm does not say why"


def _numbers(code: str) -> tuple[int, int]:
    """Returns the status and the signal of an exit code such as 0:9."""
    match = re.fullmatch(r"(\d+):(\d+)", code)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _named(nodes: str) -> str:
    return "" if nodes in ("(null)", "None assigned") else nodes


_KEYS = ("JobState", "Reason", "ExitCode", "Restarts", "NodeList")
_MEMORY = "raise it in the recipe: slurm: {options: {mem: 128G}}"
_REFUSED = (
    "no node has the resources that it requests",
    "sinfo -o '%P %N %c %m %G' shows the nodes; change slurm.gpu_type or slurm.options",
)
# The states in which Slurm itself ends a job, with the reason and the repair (squeue's manual, JOB STATE
# CODES).
_ENDS: dict[str, tuple[str, str]] = {
    "OUT_OF_MEMORY": ("took more memory than it had", _MEMORY),
    "TIMEOUT": (
        "took longer than its time limit",
        "raise slurm.time in the recipe; the same command then continues",
    ),
    "DEADLINE": ("could not end before its deadline", "change deadline in slurm.options"),
    "NODE_FAIL": ("its node failed", "the same command continues where it stopped"),
    "BOOT_FAIL": ("its node did not start", "the same command tries again"),
    "PREEMPTED": ("was preempted by another job", "the same command continues where it stopped"),
    "REVOKED": ("was taken over by another cluster", "squeue --federation shows it"),
}
# Why a job waits (squeue's manual, JOB REASON CODES).
_REASONS = {
    "None": "Slurm has not looked at it yet",
    "Resources": "no node is free yet",
    "Priority": "jobs of higher priority come first",
    "Dependency": "the jobs that it needs have not ended",
    "DependencyNeverSatisfied": "a job that it needs did not succeed",
    "ReqNodeNotAvail": "its nodes are drained, down or reserved",
    "Nodes required for job are DOWN": "its nodes are drained, down or reserved",
    "PartitionDown": "its partition is down",
    "PartitionInactive": "its partition is inactive and starts no jobs",
    "PartitionTimeLimit": "its time limit is longer than the partition allows",
    "PartitionNodeLimit": "it requests more nodes than the partition allows",
    "BeginTime": "is requeued, and starts soon",
    "JobHeldUser": "is held by its user",
    "JobHeldAdmin": "is held by an administrator",
    "BadConstraints": "no node has the resources that it requests",
    "Licenses": "no licence is free",
    "Reservation": "its reservation has not begun",
    "launch failed requeued held": "could not be started, and is held",
}


def sbatch_words(job: ClusterJob, after: Sequence[str]) -> tuple[str, ...]:
    """Returns the arguments of `sbatch`; the job starts when those with the ids `after` have succeeded.

    Two jobs of one name and user run one after the other: the second finds the first one's results in the
    store. Options are on the command line, where they override the environment's SBATCH_….
    """
    order = [*([":".join(("afterok", *after))] if after else []), "singleton"]
    return (
        "--parsable",
        f"--job-name={job.name}",
        f"--comment={job.title}",
        *("--nodes=1", "--ntasks=1", "--requeue", "--open-mode=append", "--export=ALL", "--chdir=/"),
        f"--output={str(job.log).replace('%', '%%')}",  # % begins a pattern
        f"--dependency={','.join(order)}",
        "--kill-on-invalid-dep=yes",
        *_asked(job),
    )


def sbatch_script(job: ClusterJob, python: str, caches: Mapping[str, Path]) -> str:
    """Returns the script of a job, in which `python` runs trtspec if the recipe names no container.

    `caches` are folders by the variables that name them. A container runs in a step of one rank. That is no
    MPI rank unless the recipe names srun's kind of MPI.
    """
    section, cpus = job.recipe.slurm, _options(job).get(_CPU)
    if section.container_image is None:
        return _shell((python, "-m", "trtspec", *job.arguments))
    folders = dict.fromkeys((*job.folders, *caches.values()))
    for folder in folders:
        if "," in str(folder) or ":" in str(folder):
            raise JobError(folder, "cannot be mounted by pyxis, whose lists have commas and colons")
    mounts = (*(f"{folder}:{folder}" for folder in folders), *section.container_mounts)
    return _shell(
        (
            *("srun", f"--mpi={section.mpi or 'none'}"),
            # Since Slurm 22.05 a step does not inherit this, and would be bound to one processor.
            *([f"--{_CPU}={cpus}"] if cpus else []),
            f"--container-image={section.container_image}",
            f"--container-mounts={','.join(mounts)}",
            *("env", *(f"--unset={name}" for name in (() if section.mpi else _OF_RANKS))),
            # The container has a home of its own.
            *(f"{name}={folder}" for name, folder in caches.items()),
            *("trtspec", *job.arguments),
        )
    )


def _asked(job: ClusterJob) -> Iterator[str]:
    section = job.recipe.slurm
    partition = section.partition if job.gpus else section.cpu_partition or section.partition
    named = {"partition": partition, "account": section.account, "time": section.time or f"{job.hours}:00:00"}
    yield from (f"--{name}={value}" for name, value in named.items() if value is not None)
    if job.gpus:
        kind = section.gpu_type or job.recipe.hardware.gpu
        yield f"--gpus-per-node={job.gpus}" if kind == SLURM_ANY else f"--gpus-per-node={kind}:{job.gpus}"
    for name, value in _options(job).items():
        if value is True:
            yield f"--{name}"
        elif value is not False:
            yield f"--{name}={value}"


def _options(job: ClusterJob) -> dict[str, bool | int | str]:
    """Returns further options of sbatch: the recipe's, and those that the job needs and the recipe lacks."""
    section = job.recipe.slurm
    given = section.options | (section.gpu_options if job.gpus else {})
    memory = {} if given.keys() & _MEMORIES else {"mem": f"{math.ceil(job.memory / GIB)}G"}
    cpus = {} if given.keys() & _PROCESSORS else {_CPU: CPUS}
    return {**memory, **cpus, **given}


def _shell(argv: Sequence[str]) -> str:
    # With exec, Slurm's signals reach trtspec, and its exit status is the job's.
    return f"#!/bin/sh\nexec {shlex.join(argv)}\n"
