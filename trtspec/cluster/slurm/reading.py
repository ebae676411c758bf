"""Reads the states of jobs from squeue, scontrol and sacct; pure."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass
from typing import NamedTuple

from trtspec.base.causes import signal_name
from trtspec.cluster.jobs.job import JobState, Phase

SQUEUE_FORMAT = "%A|%j|%T|%N|%r"
SACCT_FORMAT = "State,ExitCode,NodeList"

_RUNS = frozenset({"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "RESIZING"})
_HELD = frozenset({"SPECIAL_EXIT", "REQUEUE_HOLD", "RESV_DEL_HOLD"})
_QUEUED = frozenset({"PENDING", "REQUEUED", "REQUEUE_FED"})
_WAITS = _HELD | _QUEUED | {"CONFIGURING", "SUSPENDED", "STOPPED"}
ACTIVE = _RUNS | _WAITS
"""The states of jobs that are not over, from Slurm's manual (squeue, JOB STATE CODES)."""


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


def rows(output: str) -> list[QueueRow]:
    """Returns the rows that squeue has printed in SQUEUE_FORMAT."""
    return [QueueRow(*line.split("|", 4)) for line in output.splitlines() if line.count("|") >= 4]


def end(output: str) -> End:
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


def accounted(output: str) -> End | None:
    """Returns the end of a job from sacct's output in SACCT_FORMAT; None if accounting does not have the
    job."""
    lines = [line.split("|") for line in output.splitlines() if line.count("|") == 2]
    if not lines:
        return None
    # A requeued job has a line for each run; the last line is its end.
    state, code, node = lines[-1]
    status, number = _numbers(code)
    return End(state.split()[0], status, number, _named(node), restarts=len(lines) - 1)


def waiting(row: QueueRow) -> JobState:
    """Returns the state of a job that has not ended."""
    if row.state in _RUNS:
        return JobState(Phase.RUNS, node=row.node or None)
    return JobState(Phase.WAITS, _reason(row))


def over(found: End) -> JobState:
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
