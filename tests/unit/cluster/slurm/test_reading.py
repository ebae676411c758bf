"""What Slurm says of jobs: the lines are those of Slurm 22.05 where not marked otherwise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from trtspec.cluster.jobs import ClusterJob, JobState, Phase
from trtspec.cluster.slurm import (
    _FORGOTTEN,
    ACTIVE,
    QueueRow,
    SlurmScheduler,
    accounted_end,
    end_state,
    job_end,
    queue_rows,
    waiting_state,
)

KILLED = (
    "JobId=3 JobName=t-kill UserId=root(0) GroupId=root(0) MCS_label=N/A Priority=4294901757 Nice=0 "
    "Account=(null) QOS=(null) JobState=FAILED Reason=JobLaunchFailure Dependency=(null) Requeue=1 "
    "Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:9 RunTime=00:00:20 TimeLimit=UNLIMITED TimeMin=N/A "
    "SubmitTime=2026-11-23T00:04:02 EligibleTime=2026-11-23T00:04:02 AccrueTime=2026-11-23T00:04:02 "
    "StartTime=2026-11-23T00:04:02 EndTime=2026-11-23T00:04:22 Deadline=N/A SuspendTime=None "
    "SecsPreSuspend=0 LastSchedEval=2026-11-23T00:04:02 Scheduler=Main Partition=all "
    "AllocNode:Sid=vm:16588 ReqNodeList=(null) ExcNodeList=(null) NodeList=n2 BatchHost=n2 "
    "NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1 ReqB:S:C:T=0:0:*:* TRES=cpu=1,node=1,billing=1 "
    "Socks/Node=* NtasksPerN:B:S:C=0:0:*:* CoreSpec=* MinCPUsNode=1 MinMemoryNode=0 "
    "MinTmpDiskNode=0 Features=(null) DelayBoot=00:00:00 OverSubscribe=OK Contiguous=0 "
    "Licenses=(null) Network=(null) Command=/a folder/JobState=RUNNING ok.sh 100 WorkDir=/tmp/a "
    "folder StdErr=/tmp/o-3.log StdIn=/dev/null StdOut=/tmp/o-3.log Power= "
)
QUEUE = """4|t-dep|CANCELLED||DependencyNeverSatisfied
1|t-ok|COMPLETED|n1|None
9|t-drain|PENDING||ReqNodeNotAvail, UnavailableNodes:n1
8|t-time|RUNNING|n1|None
"""


def ended(**values: str) -> JobState:
    """The state of the job that was killed, with other values."""
    text = KILLED
    for key, value in {"Reason": "None", "ExitCode": "0:0", **values}.items():
        before = text.partition(f" {key}=")[2].partition(" ")[0]
        text = text.replace(f" {key}={before}", f" {key}={value}", 1)
    return end_state(job_end(text))


def test_a_queue() -> None:
    found = queue_rows(QUEUE)
    assert [row.id for row in found if row.state in ACTIVE] == ["9", "8"]
    assert found[2] == QueueRow("9", "t-drain", "PENDING", "", "ReqNodeNotAvail, UnavailableNodes:n1")
    assert queue_rows("") == []


def test_a_killed_job() -> None:
    again = "the same command continues where it was killed"
    assert end_state(job_end(KILLED)) == JobState(Phase.FAILED, "was killed by SIGKILL", again, "n2")


@pytest.mark.parametrize(
    ("values", "phase", "reason"),
    [
        ({"JobState": "COMPLETED"}, Phase.DONE, None),
        ({"ExitCode": "3:0", "Reason": "NonZeroExitCode"}, Phase.FAILED, "ended with status 3"),
        ({"ExitCode": "143:0", "Reason": "NonZeroExitCode"}, Phase.FAILED, "was killed by SIGTERM"),
        ({"ExitCode": "200:0", "Reason": "NonZeroExitCode"}, Phase.FAILED, "ended with status 200"),
        ({"JobState": "OUT_OF_MEMORY", "ExitCode": "0:125"}, Phase.FAILED, "took more memory than it had"),
        ({"JobState": "TIMEOUT", "ExitCode": "0:15"}, Phase.FAILED, "took longer than its time limit"),
        ({"JobState": "NODE_FAIL"}, Phase.FAILED, "its node failed"),
        ({"JobState": "BOOT_FAIL"}, Phase.FAILED, "its node did not start"),
        ({"JobState": "DEADLINE"}, Phase.FAILED, "could not end before its deadline"),
        ({"JobState": "PREEMPTED"}, Phase.FAILED, "was preempted by another job"),
        ({"JobState": "CANCELLED", "ExitCode": "0:15"}, Phase.CANCELLED, "was cancelled in Slurm"),
        (
            {"JobState": "CANCELLED", "Reason": "DependencyNeverSatisfied"},
            Phase.CANCELLED,
            "a job that it needs did not succeed",
        ),
        ({"Reason": "BadConstraints"}, Phase.FAILED, "no node has the resources that it requests"),
        ({"JobState": "NEW_WORD", "Reason": "NewReason"}, Phase.FAILED, "ended as NEW_WORD: NewReason"),
    ],
)
def test_how_a_job_ended(values: dict[str, str], phase: Phase, reason: str | None) -> None:
    found = ended(**values)
    assert (found.phase, found.reason, found.node) == (phase, reason, "n2")


def test_a_job_that_was_requeued_says_how_often() -> None:
    assert ended(JobState="COMPLETED", Restarts="2").restarts == 2


@pytest.mark.parametrize(
    ("state", "reason", "told"),
    [
        ("PENDING", "Resources", "no node is free yet"),
        ("PENDING", "Dependency", "the jobs that it needs have not ended"),
        (
            "PENDING",
            "ReqNodeNotAvail, UnavailableNodes:n1",
            "its nodes are drained, down or reserved (n1)",
        ),
        (
            "PENDING",
            "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
            "its nodes are drained, down or reserved",
        ),
        ("PENDING", "BeginTime", "is requeued, and starts soon"),
        ("PENDING", "AssocGrpGRES", "AssocGrpGRES"),
        ("REQUEUE_HOLD", "job requeued in held state", "is held: scontrol release 7"),
        ("CONFIGURING", "None", "configuring"),
        ("SUSPENDED", "None", "suspended"),
    ],
)
def test_why_a_job_waits(state: str, reason: str, told: str) -> None:
    assert waiting_state(QueueRow("7", "t", state, "", reason)) == JobState(Phase.WAITS, told)


def test_a_job_that_runs_or_ends() -> None:
    for state in ("RUNNING", "COMPLETING"):
        assert waiting_state(QueueRow("7", "t", state, "n1", "None")) == JobState(Phase.RUNS, node="n1")


def test_accounts() -> None:
    """As sacct's manual has them; this Slurm kept none."""
    found = accounted_end("NODE_FAIL|1:0|n1\nCANCELLED by 1000|0:15|None assigned\n")
    assert found
    assert end_state(found) == JobState(Phase.CANCELLED, "was cancelled in Slurm", restarts=1)
    assert accounted_end("") is None


@pytest.mark.parametrize(
    ("scontrol", "sacct", "state"),
    [
        ("JobState=PENDING Reason=BeginTime Restarts=1", "", JobState(Phase.WAITS, "is requeued")),
        ("JobState=RUNNING Reason=None Restarts=1", "", JobState(Phase.WAITS, "is requeued")),
        ("", "RUNNING|0:0|n1\n", _FORGOTTEN),
        ("", "PENDING|0:0|None assigned\n", _FORGOTTEN),
        ("", "COMPLETED|0:0|n1\n", JobState(Phase.DONE, node="n1")),
    ],
)
def test_what_two_of_slurms_commands_say_at_different_times(
    monkeypatch: pytest.MonkeyPatch, scontrol: str, sacct: str, state: JobState
) -> None:
    """A job was requeued behind squeue's look, or its accounts are late: it has not failed."""
    said = {"squeue": "7|trtspec-x|NODE_FAIL|n1|None\n", "sacct": sacct}
    monkeypatch.setattr("trtspec.cluster.slurm.run", lambda command, *words: said[command])
    monkeypatch.setattr("trtspec.cluster.slurm.run_if_known", lambda *words: scontrol)
    job = cast(ClusterJob, SimpleNamespace(name="trtspec-x"))
    assert SlurmScheduler("python", {}).states({"7": job}) == {"7": state}
