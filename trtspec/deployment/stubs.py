"""The processes of a server's Python models, of which one may get stuck as the server starts, or end."""

from __future__ import annotations

import os
import time
from pathlib import Path

from trtspec.serving.triton.watching import stat

# A model's process begins with Python and the model's own modules; engines are loaded later.
_BEGINNING_S = 25.0
# Triton sees the end of a process that it has heard of within this time.
_SEEN_S = 1.0
_STUB = b"triton_python_backend_stub"
_NAME = _STUB[:15]  # as the kernel cuts it, TASK_COMM_LEN


class Stubs:
    """The processes of the Python models of the process `server`, which may be mpirun."""

    def __init__(self, server: int) -> None:
        self._server, self._begun, self._ended = server, set[int](), dict[int, float]()

    def is_stuck(self) -> bool:
        """Says whether one has not come to its `initialize` in 25 seconds.

        One that has come there has a child, its watchdog, until it ends. Triton waits ten seconds for a
        process to come there; under load it then waits without a limit for it to end.
        """
        stubs = _stubs(self._server)
        self._begun = {pid for pid in stubs if pid in self._begun or _children(pid)}
        return any(_age(pid) > _BEGINNING_S for pid in stubs if pid not in self._begun)

    def lost(self) -> int | None:
        """Returns the exit status of one that has ended, negative for a signal, and that Triton waits for.

        It waits as long as for one that loads, or at work for ever. The status is None where there is no such
        process.
        """
        now, found = time.monotonic(), {pid: stat(pid) for pid in _dead_stubs(self._server)}
        self._ended = {pid: self._ended.get(pid, now) for pid in found}
        for pid, process in found.items():
            if process and now - self._ended[pid] > _SEEN_S:
                return os.waitstatus_to_exitcode(process.status)
        return None


def _stubs(pid: int) -> list[int]:
    return [child for child in _below(pid) if _STUB in _read(child, "cmdline")]


def _dead_stubs(pid: int) -> list[int]:
    """Returns those that have ended, and wait for their parent to ask how; they have no command line."""
    return [
        child
        for child in _below(pid)
        if _read(child, "comm").strip() == _NAME and not _read(child, "cmdline")
    ]


def _below(pid: int) -> list[int]:
    """Returns the children of a process, and theirs; not those of stubs."""
    found = []
    for child in _children(pid):
        found += [child] if _STUB in _read(child, "cmdline") else [child, *_below(child)]
    return found


def _children(pid: int) -> list[int]:
    try:
        tasks = os.listdir(f"/proc/{pid}/task")
    except OSError:  # It has just ended.
        return []
    return [int(child) for task in tasks for child in _read(pid, f"task/{task}/children").split()]


def _age(pid: int) -> float:
    """Returns the age of a process in seconds, from ticks of a hundredth (proc_pid_stat(5))."""
    process = stat(pid)
    return time.clock_gettime(time.CLOCK_BOOTTIME) - int(process.born) / 100 if process else 0.0


def _read(pid: int, name: str) -> bytes:
    """Returns a file of a process; it is empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
