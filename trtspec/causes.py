"""Known ways to fail, recognised by what a command said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """The pattern of what is said, what is wrong, what to do; {0} is the first group of the pattern."""

    pattern: str
    problem: str
    repair: str


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


def gpu_memory(repair: str) -> Cause:
    """CUDA's ways to say that a GPU is full; what takes less of it depends on what was done."""
    said = (
        r"CUDA out of memory|OutOfMemoryError|Requested amount of GPU memory|cudaErrorMemoryAllocation"
        r"|CUDA error: out of memory|Cuda Runtime \(out of memory\)"
    )
    return Cause(said, "the GPU has too little free memory", repair)


def find_cause(causes: Iterable[Cause], said: str) -> tuple[str, str] | None:
    """Problem and repair of the first cause that fits; None for an unknown one."""
    for cause in causes:
        if found := re.search(cause.pattern, said):
            return cause.problem.format(*found.groups("")), cause.repair
    return None
