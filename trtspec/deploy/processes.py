"""The processes of a server, of which one may have got stuck."""

from __future__ import annotations

import time
from pathlib import Path

# A model's process begins with Python and the model's own modules; engines are loaded later.
_BEGINNING_S = 25.0
_STUB = b"triton_python_backend_stub"


def has_stuck_stub(server: int) -> bool:
    """Says whether a process of a Python model has not come to its `initialize` in 25 seconds.

    One that has come there has a child, its watchdog. Triton waits ten seconds for such a process to answer;
    under load it then waits without a limit for it to end.
    """
    return any(_age(pid) > _BEGINNING_S and not _children(pid) for pid in _stubs(server))


def _stubs(pid: int) -> list[int]:
    """Returns the processes of Python models below a process, which may be mpirun."""
    found = []
    for child in _children(pid):
        found += [child] if _STUB in _read(child, "cmdline") else _stubs(child)
    return found


def _children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*")
    return [int(child) for task in tasks for child in _read(pid, f"task/{task.name}/children").split()]


def _age(pid: int) -> float:
    """Returns the age of a process in seconds, from ticks of a hundredth (proc_pid_stat(5))."""
    stat = _read(pid, "stat").rpartition(b")")[2].split()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(stat[19]) / 100 if stat else 0.0


def _read(pid: int, name: str) -> bytes:
    """Returns a file of a process; it is empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
