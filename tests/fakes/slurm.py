"""Stand-ins for sbatch, squeue, scontrol, sacct and scancel, strict about what trtspec says to them.

The folder `FAKE_SLURM` is the cluster: `jobs.json`, `scripts/<id>`, `calls` (a JSON list a line), `trouble`
(what every command says before it fails) and `life.json`: by the end of a job's title the states that squeue
tells of it, one a call, the last for ever. A state is Slurm's word, and what belongs to it after a space:
`PENDING Resources`, `FAILED 0:9`. `COMPLETED run` runs the script and has its status; `GONE` is forgotten,
and `GONE FAILED 1:0` is left in the accounts.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

ROOT = Path(os.environ["FAKE_SLURM"])
NEEDED = {
    *("--parsable", "--job-name", "--comment", "--nodes", "--ntasks", "--requeue", "--open-mode", "--export"),
    *("--chdir", "--output", "--dependency", "--kill-on-invalid-dep", "--time", "--mem", "--cpus-per-task"),
}
KNOWN = NEEDED | {"--partition", "--account", "--gpus-per-node"}
ACTIVE = ("PENDING", "RUNNING", "COMPLETING")
Job = dict[str, Any]


def fail(said: str, status: int = 1) -> NoReturn:
    print(said, file=sys.stderr)
    sys.exit(status)


def jobs() -> dict[str, Job]:
    file = ROOT / "jobs.json"
    found: dict[str, Job] = json.loads(file.read_text()) if file.exists() else {}
    return found


def keep(found: dict[str, Job]) -> None:
    (ROOT / "jobs.json").write_text(json.dumps(found))


def sbatch(words: list[str]) -> None:
    given = {word.partition("=")[0]: word.partition("=")[2] for word in words}
    for option in given:
        if option not in KNOWN:
            fail(f"sbatch: unrecognized option '{option}'\nTry \"sbatch --help\" for more information")
    assert not NEEDED - set(given), NEEDED - set(given)
    assert Path(given["--output"]).parent.is_dir(), "Slurm makes no folder for the output"
    if given.get("--partition") not in (None, "gpu", "cpu"):
        fail("sbatch: error: Batch job submission failed: Invalid partition name specified")
    gpus = given.get("--gpus-per-node")
    if gpus and not re.fullmatch(r"(h100|h200):[12]", gpus):
        fail("sbatch: error: Batch job submission failed: Requested node configuration is not available")
    script, found = sys.stdin.read(), jobs()
    assert script.startswith("#!/bin/sh\n")
    *before, last = given["--dependency"].split(",")
    assert last == "singleton"
    needs = [job_id for part in before for job_id in part.removeprefix("afterok:").split(":")]
    assert set(needs) <= set(found), needs
    job_id = str(len(found) + 1)
    name, title = given["--job-name"], given["--comment"]
    found[job_id] = {"name": name, "title": title, "seen": 0, "needs": needs, "output": given["--output"]}
    (ROOT / "scripts").mkdir(exist_ok=True)
    (ROOT / "scripts" / job_id).write_text(script)
    keep(found)
    print(job_id)


def squeue(words: list[str]) -> None:
    *flags, names, shape = words
    assert flags == ["--me", "--noheader", "--states=all"], flags
    assert shape == "--format=%A|%j|%T|%N|%r", shape
    found = jobs()
    for job_id, job in found.items():
        if job["name"] in names.removeprefix("--name=").split(","):
            word, _, more = step(job_id, job, found).partition(" ")
            reason = more if word == "PENDING" else "None"
            if word != "GONE":
                print(job_id, job["name"], word, "" if word == "PENDING" else "n1", reason, sep="|")
    keep(found)


def step(job_id: str, job: Job, found: dict[str, Job]) -> str:
    """The state of a job now; each look brings it on by one."""
    if job.get("end"):
        return str(job["end"])
    ends = [found[other].get("end") for other in job["needs"]]
    if any(end and not end.startswith("COMPLETED") for end in ends):
        job["end"] = "CANCELLED 0:0 DependencyNeverSatisfied"
        return str(job["end"])
    if not all(ends):
        return "PENDING Dependency"
    life = json.loads((ROOT / "life.json").read_text())
    states = next((life[end] for end in life if job["title"].endswith(end)), ["RUNNING", "COMPLETED run"])
    state = str(states[min(job["seen"], len(states) - 1)])
    job["seen"] += 1
    if state == "COMPLETED run":
        state = ran(job_id, job)
    if not state.startswith(ACTIVE):
        job["end"] = state
    return state


def ran(job_id: str, job: Job) -> str:
    with Path(job["output"]).open("ab") as log:
        script = ["/bin/sh", str(ROOT / "scripts" / job_id)]
        status = subprocess.run(script, stdout=log, stderr=log, check=False).returncode
    return f"FAILED {status}:0" if status else "COMPLETED 0:0"


def scontrol(words: list[str]) -> None:
    assert words[:-1] == ["show", "job", "--oneliner"], words
    job = jobs().get(words[-1])
    if job is None or job["end"].startswith("GONE"):
        fail("slurm_load_jobs error: Invalid job id specified")
    word, code, reason = (*job["end"].split(" "), "0:0", "None")[:3]
    print(
        f"JobId={words[-1]} JobName={job['name']} UserId=root(0) JobState={word} "
        f"Reason={reason} Dependency=(null) Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode={code} "
        "RunTime=00:00:20 Partition=all ReqNodeList=(null) ExcNodeList=(null) NodeList=n1 BatchHost=n1 "
        f"Command=(null) WorkDir=/ Comment={job['title']} StdOut={job['output']}"
    )


def sacct(words: list[str]) -> None:
    *flags, job, shape = words
    assert flags == ["--allocations", "--noheader", "--parsable2", "--duplicates"], flags
    assert shape == "--format=State,ExitCode,NodeList", shape
    kept = jobs()[job.removeprefix("--jobs=")]["end"].split(" ")[1:]
    if not kept:
        fail("Slurm accounting storage is disabled")
    print(*kept, "n1", sep="|")


def scancel(words: list[str]) -> None:
    found = jobs()
    for job_id in words:
        if not found[job_id].get("end"):
            found[job_id]["end"] = "CANCELLED 0:15"
    keep(found)


COMMANDS = {command.__name__: command for command in (sbatch, squeue, scontrol, sacct, scancel)}


def main() -> None:
    command = Path(sys.argv[0]).name
    with (ROOT / "calls").open("a") as calls:
        calls.write(json.dumps([command, *sys.argv[1:]]) + "\n")
    if trouble := (ROOT / "trouble").read_text():
        fail(trouble)
    COMMANDS[command](sys.argv[1:])


if __name__ == "__main__":
    main()
