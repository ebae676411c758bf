"""Runs the commands of Slurm, and turns their failures into one-line errors."""

from __future__ import annotations

import re
import shutil
import subprocess

from trtspec.base.causes import Cause, find_cause
from trtspec.base.errors import JobError, TrtspecError, UnavailableError

_SILENT = (
    r"Unable to contact slurm controller|Socket timed out|Connection refused|Zero Bytes were transmitted"
)
_CONFIGURATION = r"[Uu]nable to (establish|process) configuration source|resolve_ctls_from_dns_srv"
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


def run(command: str, *words: str, stdin: str = "") -> str:
    """Returns the output of a command of Slurm.

    Raises UnavailableError if Slurm does not answer, and JobError if it refuses.
    """
    result = _run(command, words, stdin)
    if result.returncode:
        raise explained(command, result.stderr or result.stdout)
    return result.stdout


def run_if_known(command: str, *words: str) -> str | None:
    """Returns the output of a command about a job; None if Slurm no longer knows the job.

    Raises UnavailableError if Slurm does not answer.
    """
    result = _run(command, words, "")
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
        repair = "run this where jobs are submitted, on the cluster's login node; or set SLURM_CONF"
        return UnavailableError("Slurm", "is installed here, but not configured", repair)
    if known := find_cause(CAUSES, said):
        return JobError(command, *known)
    first = next((line for line in said.splitlines() if line.strip()), "failed without a message")
    return JobError(command, _PREFIX.sub("", first))


def _run(command: str, words: tuple[str, ...], stdin: str) -> subprocess.CompletedProcess[str]:
    executable = shutil.which(command)
    if executable is None:
        repair = "run this where jobs are submitted, on the cluster's login node"
        raise UnavailableError(command, "is not on PATH", repair)
    # In a session of its own, so that Ctrl-C does not end a submission halfway.
    return subprocess.run(  # noqa: S603
        [executable, *words], input=stdin, capture_output=True, text=True, check=False, start_new_session=True
    )
