from __future__ import annotations

import os
from pathlib import Path

import pytest

from trtspec.serving.executors.torch.host import ProcessShare, look

MEMINFO = "MemTotal:       32000000 kB\nMemFree:         1000000 kB\nMemAvailable:    2000000 kB\n"


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sysconf", lambda _: 10**6)


def machine(root: Path, groups: str, files: dict[str, str]) -> Path:
    for name, content in {"proc/self/cgroup": groups, "proc/meminfo": MEMINFO, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_without_limits(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/cpu.max": "max 100000\n", "sys/fs/cgroup/memory.max": "max\n"}
    host = look(machine(tmp_path, "0::/\n", files))
    assert (host.quota, host.memory) == (None, 2000000 * 1024)
    assert host.cpus == len(os.sched_getaffinity(0))


def test_version_2(tmp_path: Path) -> None:
    """The tightest of the own group and those around it."""
    files = {
        "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        "sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
        "sys/fs/cgroup/a/memory.max": "1000000000\n",
        "sys/fs/cgroup/a/memory.current": "700000000\n",
        "sys/fs/cgroup/a/memory.stat": "anon 500000000\ninactive_file 200000000\n",
    }
    host = look(machine(tmp_path, "0::/a/b\n", files))
    assert (host.quota, host.memory) == (1.5, 500000000)


def test_version_1(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": "3000000000\n",
        "sys/fs/cgroup/memory/job/memory.usage_in_bytes": "2900000000\n",
        "sys/fs/cgroup/memory/job/memory.stat": "inactive_file 1\ntotal_inactive_file 400000000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n",
    }
    host = look(machine(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n", files))
    assert (host.quota, host.memory) == (0.5, 500000000)


def test_a_container_that_does_not_see_its_own_path(tmp_path: Path) -> None:
    files = {
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "700000000\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": "500000000\n",
    }
    host = look(machine(tmp_path, "4:memory:/docker/0123\n3:cpu:/docker/0123\n", files))
    assert (host.quota, host.memory) == (None, 200000000)


def test_a_group_that_is_over_its_limit(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/memory.max": "5\n", "sys/fs/cgroup/memory.current": "9\n"}
    assert look(machine(tmp_path, "0::/\n", files)).memory == 0


def test_a_system_without_proc(tmp_path: Path) -> None:
    assert look(tmp_path).memory == 10**12


def test_the_number_of_threads_that_the_user_set_is_read_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert look(tmp_path).omp_num_threads == "3"


def test_the_look_at_this_machine_finds_processors_and_memory() -> None:
    host = look()
    assert host.cpus >= 1
    assert host.memory > 0


@pytest.mark.parametrize(
    ("host", "threads"),
    [
        (ProcessShare(8, None, 0), 8),
        (ProcessShare(8, 2.5, 0), 2),
        (ProcessShare(8, 0.5, 0), 1),
        (ProcessShare(2, 4.0, 0), 2),
        (ProcessShare(8, 2.5, 0, "3"), 3),
        (ProcessShare(8, None, 0, "4,2"), 4),
        (ProcessShare(8, None, 0, "many"), 8),
    ],
)
def test_as_many_as_there_are_processors_for(host: ProcessShare, threads: int) -> None:
    assert host.threads[0] == threads


def test_the_threads_of_a_process_leave_out_processors_that_other_threads_keep_busy() -> None:
    assert ProcessShare(8, None, 0, busy=1).threads == (
        7,
        "one for each processor that the process may run on, minus 1 for the threads that drive the GPU",
    )
    assert ProcessShare(8, 2.5, 0, busy=1).threads == (
        1,
        "the control group allows 2.5 processors, minus 1 for the threads that drive the GPU",
    )
    assert ProcessShare(1, None, 0, busy=1).threads[0] == 1
    assert ProcessShare(8, None, 0, "3", busy=1).threads == (3, "OMP_NUM_THREADS")
