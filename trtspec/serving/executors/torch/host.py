"""The host: the processors and the memory that affinity and control groups leave to this process.

Control groups are read in both versions (Linux, `admin-guide/cgroup-v2.rst`: `cpu.max`, `memory.max`;
`scheduler/sched-bwc.rst` and `cgroup-v1/memory.rst` for the older names). The limits of all groups from the
process's own to the visible root count.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MEMORY = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


@dataclass(frozen=True, slots=True)
class ProcessShare:
    """The part of a machine that a process may use."""

    cpus: int
    """The number of processors that it may run on."""
    quota: float | None
    """The number of processors that it may use at a time; None for all."""
    memory: int
    """The free memory in bytes."""
    omp_num_threads: str | None = None
    """The environment variable of that name."""
    busy: int = 0
    """The number of processors that other threads of the process keep busy."""

    @property
    def threads(self) -> tuple[int, str]:
        """The largest number of threads for a step, and its reason."""
        asked, *_ = (self.omp_num_threads or "").split(",")  # the number for the outermost parallel region
        if asked.strip().isdigit() and int(asked):
            return int(asked), "OMP_NUM_THREADS"
        most, because = self.cpus, "one for each processor that the process may run on"
        if self.quota is not None and self.quota < self.cpus:
            most, because = int(self.quota), f"the control group allows {self.quota:g} processors"
        if self.busy:
            because += f", minus {self.busy} for the threads that drive the GPU"
        return max(most - self.busy, 1), because


def look(root: Path = Path("/")) -> ProcessShare:
    """Returns the share of this process; `root` has `proc` and `sys`."""
    groups = list(_groups(root))
    affinity = getattr(os, "sched_getaffinity", None)
    return ProcessShare(
        cpus=len(affinity(0)) if affinity else os.cpu_count() or 1,
        quota=min((quota for group in groups if (quota := _quota(group))), default=None),
        memory=min(_free(root, groups)),
        omp_num_threads=os.environ.get("OMP_NUM_THREADS") or None,
    )


def _groups(root: Path) -> Iterator[Path]:
    """Yields the folders of the process's control groups and of their parents.

    In a container the path may be one of the host that does not exist here. Then the mounted folder is the
    process's own group.
    """
    base = root / "sys/fs/cgroup"
    for line in _text(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        for mount in [base / controllers] if controllers else [base, base / "unified"]:
            own = mount / path.lstrip("/")
            yield from (group for group in (own, *own.parents) if group == mount or mount in group.parents)


def _quota(group: Path) -> float | None:
    quota, period = _text(group / "cpu.max").split() or (
        _text(group / "cpu.cfs_quota_us").strip(),
        _text(group / "cpu.cfs_period_us").strip(),
    )
    if not quota.isdigit() or not period.isdigit() or not int(period):  # max, -1, or missing
        return None
    return int(quota) / int(period)


def _free(root: Path, groups: list[Path]) -> Iterator[int]:
    yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for line in _text(root / "proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024
    for group in groups:
        for most, used in _MEMORY:
            limit, taken = _text(group / most).strip(), _text(group / used).strip()
            if limit.isdigit() and taken.isdigit():
                # The file cache counts as used, but the kernel frees it when needed.
                yield max(int(limit) - int(taken) + _cached(group), 0)


def _cached(group: Path) -> int:
    counts = dict(line.split() for line in _text(group / "memory.stat").splitlines())
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
