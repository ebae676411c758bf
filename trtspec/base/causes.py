"""Known causes of failure, recognised in the output of a command."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """A cause that is known by a command's output."""

    pattern: str
    """A regular expression for the output."""
    problem: str
    """The problem that it stands for. `{0}` stands for the pattern's first group."""
    repair: str
    """The repair of the problem."""


DRIVER = Cause(
    r"driver version is insufficient|NVIDIA driver on your system is too old"
    r"|forward compatibility was attempted|CUDA initialization: ",
    "NVIDIA's driver does not run the CUDA of this release",
    "install a newer driver: trtspec doctor says which",
)
EXCLUSIVE = Cause(
    r"busy or unavailable|cudaErrorDevicesUnavailable",
    "a GPU lets no further process in",
    "set its compute mode: nvidia-smi -c DEFAULT, and end what else uses it",
)

MPI = Cause(
    r"MPI_INIT(?:_THREAD)? failed|MPI_Init(?:_thread)? has failed|PML add procs failed|UCX +ERROR",
    "MPI finds no transport that works between its processes",
    "set UCX_TLS=tcp,self,sm in the environment: some network adapters are found and cannot be used",
)


def gpu_memory(repair: str) -> Cause:
    """The cause for all of CUDA's messages that a GPU is full; `repair` says how to need less memory."""
    said = (
        r"CUDA out of memory|OutOfMemoryError|Requested amount of GPU memory|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|Cuda Runtime \(out of memory\)"
    )
    return Cause(said, "the GPU has too little free memory", repair)


def find_cause(causes: Iterable[Cause], said: str) -> tuple[str, str] | None:
    """The problem and the repair of the first cause whose pattern `said` has; None if there is none."""
    for cause in causes:
        if found := re.search(cause.pattern, said):
            return cause.problem.format(*found.groups("")), cause.repair
    return None


def signal_name(number: int) -> str:
    """Returns the name of a signal; Python has none for those of real time."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
