"""A real Slurm on this machine: a controller and two nodes with GPUs of a type, which are device files.

Debian's slurm-wlm has it. There is no munge, no accounting and no cgroup, so that it runs in a container too.
"""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.ports import free_port

NODES = {"n1": "h100", "n2": "h200"}
_CONF = """
ClusterName=trtspec
SlurmctldHost=localhost
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={controller}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=1
SlurmdParameters=config_overrides
GresTypes=gpu
MpiDefault=none
KillWait=5
ReturnToService=2
"""
_NODE = (
    "NodeName={node} NodeHostname=localhost Port={port} CPUs=8 RealMemory=1000000 Gres=gpu:{kind}:2"
    " State=UNKNOWN\n"
)
_GRES = "NodeName={node} Name=gpu Type={kind} File={file}\n"


class RealSlurm:
    """A cluster that runs; `environment` has what its commands need."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}

    def __call__(self, *words: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(words, env=self.environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (words, done.stderr)
        return done.stdout

    def drain(self, *nodes: str) -> None:
        for node in nodes:
            self("scontrol", "update", f"nodename={node}", "state=drain", "reason=maintenance")

    def resume(self, *nodes: str) -> None:
        for node in nodes:
            self("scontrol", "update", f"nodename={node}", "state=resume")

    def queue(self) -> dict[str, str]:
        """The states of the jobs that wait or run, by their comments."""
        lines = self("squeue", "--noheader", "--format=%k|%T").splitlines()
        return dict(line.split("|") for line in lines)

    def job(self, job_id: str) -> str:
        return self("scontrol", "show", "job", "--oneliner", job_id)

    def processes(self, job_id: str) -> list[int]:
        """The processes of a job that are trtspec, from the kernel's own table."""
        found = []
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                variables = (place / "environ").read_bytes().split(b"\0")
                words = (place / "cmdline").read_bytes().split(b"\0")
                if f"SLURM_JOB_ID={job_id}".encode() in variables and b"trtspec" in words:
                    found.append(int(place.name))
        return found


@contextmanager
def running(folder: Path) -> Iterator[RealSlurm]:
    """Yields a cluster whose nodes are idle; nothing of it is left at the end."""
    missing = [name for name in ("slurmctld", "slurmd", "sbatch") if shutil.which(name, path=_PATH) is None]
    assert not missing, f"{missing[0]} is not installed: make test-slurm installs Debian's slurm-wlm"
    _write(folder)
    slurm, daemons = RealSlurm(folder), list[subprocess.Popen[bytes]]()
    commands = [["slurmctld", "-D"], *(["slurmd", "-D", "-N", node] for node in NODES)]
    try:
        for command in commands:
            program = shutil.which(command[0], path=_PATH)
            assert program
            log = (folder / f"{command[-1]}.out").open("wb")
            daemons.append(
                subprocess.Popen([program, *command[1:]], env=slurm.environment, stdout=log, stderr=log)
            )
            if len(daemons) == 1:
                wait_for(lambda: "UP" in _quietly(slurm, "scontrol", "ping"), 30)
        wait_for(lambda: _quietly(slurm, "sinfo", "--noheader", "--format=%t").split() == ["idle"], 60)
        yield slurm
    finally:
        with suppress(AssertionError, OSError):
            slurm("scancel", f"--user={getpass.getuser()}")
            wait_for(lambda: not slurm.queue(), 30)
        for daemon in reversed(daemons):
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(30)


def wait_for(is_so: Callable[[], object], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not so after {seconds:.0f} s"
        time.sleep(0.1)


def _quietly(slurm: RealSlurm, *words: str) -> str:
    try:
        return slurm(*words)
    except AssertionError:
        return ""


def _write(folder: Path) -> None:
    user = getpass.getuser()
    text = _CONF.format(user=user, controller=free_port(), folder=folder)
    for node, kind in NODES.items():
        text += _NODE.format(node=node, port=free_port(), kind=kind)
        (folder / f"spool-{node}").mkdir()
    text += f"PartitionName=all Nodes={','.join(NODES)} Default=YES MaxTime=INFINITE State=UP\n"
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(text)
    gres = (
        _GRES.format(node=node, kind=kind, file=file)
        for node, kind in NODES.items()
        for file in ("/dev/zero", "/dev/full")
    )
    (folder / "gres.conf").write_text("".join(gres))


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
