"""Builds on Slurm, whose commands are stand-ins.

The lines of jobs are those of Slurm 22.05 if not marked otherwise.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.support.command_line import trtspec
from tests.unit.cluster.slurm.conftest import Cluster
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
    run,
    waiting_state,
)
from trtspec.pipeline.store.store import Store

ORDER = ["pair target: build", "pair draft: build", "pair pair"]
STILL = ["COMPLETED 0:0"]


@pytest.fixture
def folder(pair_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the recipe `pair.yaml`, in which the command is run."""
    monkeypatch.chdir(pair_recipe.parent)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))
    return pair_recipe.parent


def on_slurm(*words: object, recipe: str = "pair.yaml", status: int = 0) -> tuple[str, str]:
    """What a build says on stdout and stderr."""
    done = trtspec("build", recipe, "--on", "slurm", "--store", "store", *words)
    assert done.returncode == status, done.stderr
    return done.stdout, done.stderr


def test_a_build_on_slurm_puts_the_pair_into_the_store_and_then_finds_it(
    cluster: Cluster, folder: Path
) -> None:
    cluster.life({"target: build": ["PENDING Resources", "RUNNING", "COMPLETED run"]})
    stdout, stderr = on_slurm()
    assert cluster.submitted == ORDER
    entries = {entry.role: entry for entry in Store(str(folder / "store")).entries()}
    assert stdout == f"pair  {entries['pair'].digest}\n"
    for line in (
        "pair target: build: job 1",
        "pair target: build: waits: no node is free yet",
        "pair pair: waits: the jobs that it needs have not ended",
        "pair target: build: runs on n1",
        "pair pair: done on n1",
    ):
        assert line in stderr.splitlines()
    logs = folder / "build/pair/.trtspec/logs"
    assert "pushed target" in (logs / "job-target-build.log").read_text()
    assert "pushed pair" in (logs / "job-pair.log").read_text()
    assert (folder / "build/pair/manifest.json").exists()

    stdout, stderr = on_slurm()
    assert stdout == f"pair  {entries['pair'].digest}\n"
    assert "pair: the store has it, " in stderr
    assert len(cluster.submitted) == 3


@pytest.mark.parametrize(
    ("end", "said", "helps"),
    [
        ("FAILED 0:9 JobLaunchFailure", "was killed by SIGKILL", "continues where it was killed"),
        ("CANCELLED 0:15", "was cancelled in Slurm", ""),
        ("GONE OUT_OF_MEMORY 0:125", "took more memory than it had", "mem: 128G"),
        ("GONE", "no longer knows how it ended", ""),
    ],
)
def test_a_job_that_dies_is_told_with_its_reason(
    cluster: Cluster, folder: Path, end: str, said: str, helps: str
) -> None:
    cluster.life({"target: build": ["RUNNING", end], "draft: build": STILL})
    stdout, stderr = on_slurm(status=1)
    assert stdout == ""
    assert f"{said}" in stderr
    assert helps in stderr
    assert "pair pair: cancelled" in stderr
    assert "error: Slurm: the store lacks pair" in stderr
    assert "the same command continues them" in stderr


def test_why_a_job_waits(cluster: Cluster, folder: Path) -> None:
    waits = ["PENDING ReqNodeNotAvail, UnavailableNodes:n[1-2]", "PENDING Priority", "PENDING BeginTime"]
    unknown = "PENDING QOSMaxGRESPerUser"
    cluster.life({"target: build": [*waits, unknown, "FAILED 1:0"], "draft: build": STILL})
    _, stderr = on_slurm(status=1)
    told = re.findall(r"pair target: build: waits: (.*)", stderr)
    assert told == [
        "its nodes are drained, down or reserved (n[1-2])",
        "jobs of higher priority come first",
        "is requeued, and starts soon",
        "QOSMaxGRESPerUser",
    ]


def test_a_recipe_that_changes_before_its_job_begins(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job makes what it is named by, or nothing; the end of its log says why."""
    recipe = folder / "pair.yaml"
    cluster.life({"target: build": ["PENDING Resources", "COMPLETED run"], "draft: build": STILL})

    def edit(_: float) -> None:
        recipe.write_text(
            recipe.read_text().replace("{model: ./target}", "{model: ./target, dtype: float16}")
        )

    monkeypatch.setattr("trtspec.cluster.jobs.sleep", edit)
    _, stderr = on_slurm(status=1)
    assert "would make another target than the planned one" in stderr
    assert "error: pair target: build: ended with status 1; its output is in " in stderr
    assert not (folder / "store").exists()


def test_models_that_cannot_be_read_get_no_job(cluster: Cluster, folder: Path) -> None:
    (folder / "target/model.safetensors").write_bytes(b"broken")
    _, stderr = on_slurm(status=1)
    assert "model.safetensors" in stderr
    assert not (cluster.folder / "jobs.json").exists()


@pytest.mark.parametrize("option", ["leave", "cancel"])
def test_an_interrupt_leaves_or_cancels_the_slurm_jobs_as_asked(
    cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    cluster.life({"build": ["RUNNING"]})

    def pressed(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("trtspec.cluster.jobs.sleep", pressed)
    _, stderr = on_slurm("--on-interrupt", option, status=130)
    if option == "leave":
        assert "the jobs go on; the same command shows them again" in stderr
        assert "to cancel them: scancel 1 2 3" in stderr
        assert cluster.calls("scancel") == []
    else:
        assert "cancelled: 1, 2, 3" in stderr
        assert cluster.calls("scancel") == [["1", "2", "3"]]

    monkeypatch.setattr("trtspec.cluster.jobs.sleep", lambda _: None)
    cluster.life({"build": ["RUNNING", "RUNNING", "FAILED 1:0"]})
    _, stderr = on_slurm(status=1)
    if option == "leave":
        assert "pair target: build: job 1, which an earlier call has submitted" in stderr
        assert len(cluster.submitted) == 3
    else:
        assert len(cluster.submitted) == 6


def test_sigterm_is_what_ctrl_c_is(cluster: Cluster, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.life({"build": ["RUNNING"]})
    monkeypatch.setattr("trtspec.cluster.jobs.sleep", lambda _: signal.raise_signal(signal.SIGTERM))
    on_slurm("--on-interrupt", "cancel", status=143)
    assert cluster.calls("scancel") == [["1", "2", "3"]]


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("{partition: fast, cpu_partition: fast}", "there is no such partition"),
        ("{options: {gres: 'gpu:1'}}", "this Slurm has no option --gres"),
    ],
)
def test_an_error_of_sbatch_is_shown_to_the_user(
    cluster: Cluster, folder: Path, section: str, said: str
) -> None:
    recipe = folder / "pair.yaml"
    recipe.write_text(f"{recipe.read_text()}slurm: {section}\n")
    _, stderr = on_slurm(status=1)
    assert f"error: sbatch: {said}" in stderr


def test_a_gpu_that_no_node_has(cluster: Cluster, h200_recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(h200_recipe.parent)
    h200_recipe.write_text(h200_recipe.read_text() + "slurm: {gpu_type: nvidia_h200}\n")
    _, stderr = on_slurm(status=1)
    assert "error: sbatch: no node of the partition has what the job requests" in stderr
    assert "sinfo -o '%P %N %c %m %G'" in stderr


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            "its controller does not answer",
        ),
        (
            "squeue: fatal: Could not establish a configuration source\n"
            "squeue: error: resolve_ctls_from_dns_srv: res_nsearch error: Unknown host",
            "is installed here, but not configured",
        ),
    ],
)
def test_a_slurm_that_cannot_be_asked(cluster: Cluster, folder: Path, said: str, told: str) -> None:
    cluster.trouble(said)
    _, stderr = on_slurm(status=1)
    assert f"error: Slurm: {told}" in stderr


def test_a_machine_without_slurm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    _, stderr = on_slurm(status=1)
    assert "error: squeue: is not on PATH" in stderr
    assert "login node" in stderr


def test_a_dry_run_asks_nobody(cluster: Cluster, folder: Path) -> None:
    stdout, _ = on_slurm("--dry-run")
    assert [line for line in stdout.splitlines() if line.startswith("# ")] == [
        "# pair target: build",
        "# pair draft: build",
        "# pair pair, after pair target: build and pair draft: build",
    ]
    found: dict[str, Any] = json.loads(on_slurm("--dry-run", "--json")[0])
    assert [job["title"] for job in found["jobs"]] == ORDER
    assert found["jobs"][2]["after"] == [job["name"] for job in found["jobs"][:2]]
    assert found["jobs"][0]["command"][:4] == ["trtspec", "build", str(folder / "pair.yaml"), "--only"]
    assert not (cluster.folder / "calls").exists()
    assert not (folder / "build").exists()


def test_a_failed_build_on_slurm_reports_every_job_as_json(cluster: Cluster, folder: Path) -> None:
    cluster.life({"target: build": ["FAILED 0:9 JobLaunchFailure"], "draft: build": STILL})
    found: dict[str, Any] = json.loads(on_slurm("--json", status=1)[0])
    assert found["pairs"] == {"pair": None}
    target, draft, pair = found["jobs"]
    assert (target["id"], target["state"], target["reason"]) == ("1", "failed", "was killed by SIGKILL")
    assert (target["node"], draft["state"], pair["state"]) == ("n1", "done", "cancelled")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("pair.yaml", "--on", "slurm"), "--store URL"),
        (("pair.yaml", "--on", "slurm", "--store", "s", "--container"), "for a build on this machine"),
        (("pair.yaml", "--on", "slurm", "--store", "s", "--only", "draft"), "for a build on this machine"),
        (("pair.yaml", "--on", "slurm", "--store", "s", "--until", "fetch"), "for a build on this machine"),
        (("pair.yaml", "pair.yaml"), "several are for the jobs of a cluster"),
        (("pair.yaml", "--on-interrupt", "cancel"), "it is for the jobs of a cluster"),
    ],
)
def test_a_build_on_slurm_refuses_options_that_do_not_go_together(
    cluster: Cluster, folder: Path, words: tuple[str, ...], said: str
) -> None:
    done = trtspec("build", *words)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_secret_in_the_url_is_for_no_script(cluster: Cluster, folder: Path) -> None:
    done = trtspec("build", "pair.yaml", "--on", "slurm", "--store", "sftp://me:secret@host/engines")
    assert done.returncode == 1
    assert "contains a secret" in done.stderr
    assert "secret@" not in done.stderr


def test_a_build_on_slurm_refuses_two_recipes_for_the_same_folder(cluster: Cluster, folder: Path) -> None:
    (folder / "other.yaml").write_text((folder / "pair.yaml").read_text())
    _, stderr = on_slurm("other.yaml", status=1)
    assert "other.yaml: would be built into the folder of pair.yaml" in stderr


def test_a_build_on_slurm_loads_nothing_of_kubernetes_jobs() -> None:
    """They are for the extra `cluster`."""
    code = "import sys, trtspec.cluster.commands.build_on; print(*{'yaml', 'kubernetes'} & {*sys.modules})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "\n"


def test_ctrl_c_does_not_cut_a_submission_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = tmp_path / "sbatch"
    command.write_text("#!/bin/sh\nkill -INT $PPID\nsleep 1\ntouch submitted\n")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run("sbatch")
    assert (tmp_path / "submitted").exists()


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
def test_why_a_job_of_the_queue_waits(state: str, reason: str, told: str) -> None:
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
def test_a_requeued_slurm_job_or_one_with_late_accounts_does_not_count_as_failed(
    monkeypatch: pytest.MonkeyPatch, scontrol: str, sacct: str, state: JobState
) -> None:
    """A job was requeued behind squeue's look, or its accounts are late: it has not failed."""
    said = {"squeue": "7|trtspec-x|NODE_FAIL|n1|None\n", "sacct": sacct}
    monkeypatch.setattr("trtspec.cluster.slurm.run", lambda command, *words: said[command])
    monkeypatch.setattr("trtspec.cluster.slurm.run_if_known", lambda *words: scontrol)
    job = cast(ClusterJob, SimpleNamespace(name="trtspec-x"))
    assert SlurmScheduler("python", {}).states({"7": job}) == {"7": state}
