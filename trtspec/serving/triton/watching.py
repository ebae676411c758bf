"""The child process of a `Watchdog`, `python watching.py MODEL PROCESS SERVER`, which reads its stdin.

It ends with PROCESS or with SERVER, and ends SERVER when PROCESS cannot serve any more. It runs as a script,
so it imports nothing of the package.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time
from dataclasses import dataclass

_LOOK_S = 0.25
# A debugger may stop a process for a moment. Requests wait meanwhile.
_STOPPED_S = 3.0
_SILENCE_S = 30.0
_LAST_RESPONSES_S = 1.0


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The status of a process in the kernel."""

    state: str
    """The letter of the state."""
    born: str
    """The start time, in clock ticks since boot."""
    status: int
    """The exit status in the form of wait(2)."""


def stat(pid: int) -> ProcessStat | None:
    """Returns the status of a process (proc_pid_stat(5)); None if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            words = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return ProcessStat(words[0], words[19], int(words[49]))


class Watch:
    """Judges a process by its reports and by its status."""

    def __init__(self, now: float) -> None:
        self.problem: str | None = None
        """The reason why the process cannot serve any more; None while it can."""
        self.is_closed = False
        self._unread = b""
        self._running = now
        self._beat: float | None = None

    def hear(self, report: bytes, now: float) -> None:
        """Takes bytes that the process has written to the pipe."""
        *lines, self._unread = (self._unread + report).split(b"\n")
        for line in lines:
            word, _, rest = line.decode(errors="replace").partition(" ")
            self._beat = now if word == "beat" else self._beat
            self.is_closed = self.is_closed or word == "close"
            if word == "failed":
                self.problem = rest

    def look(self, found: ProcessStat | None, now: float) -> None:
        """Takes the present status of the process."""
        if found is None or found.state in "ZX":
            self.problem = _death(found)
        elif found.state != "T":
            self._running = now
        elif now - self._running > _STOPPED_S:
            self.problem = f"was stopped for {_STOPPED_S:g} s"
        if self._beat is not None and now - self._beat > _SILENCE_S and self.problem is None:
            self.problem = f"has not answered for {_SILENCE_S:g} s"


def _death(found: ProcessStat | None) -> str:
    number = found.status & 0x7F if found else 0
    if number:
        # Python has no names for the signals of real time.
        names = {each.value: each.name for each in signal.Signals}
        return f"was killed by {names.get(number, f'signal {number}')}"
    return f"ended with status {found.status >> 8}" if found else "ended"


def main(model: str, process: int, server: int) -> None:
    # Ctrl-C in the terminal is for the server. This process ends with it.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    born, watch, is_open = stat(server), Watch(time.monotonic()), True
    while born and _is(server, born):
        if select.select([0] if is_open else [], [], [], _LOOK_S)[0]:
            report = os.read(0, 1 << 16)
            is_open = report != b""
            watch.hear(report, time.monotonic())
        if watch.is_closed:
            return
        failed = watch.problem is not None
        if not failed:
            watch.look(stat(process), time.monotonic())
        if watch.problem is not None:
            os.write(2, f"trtspec: {model} {watch.problem}, so this server ends\n".encode())
            time.sleep(_LAST_RESPONSES_S if failed else 0)
            break
    _end(server, born)
    _end(process, stat(process))


def _is(pid: int, before: ProcessStat) -> bool:
    """Says whether the same process still runs, and not a later one with its number."""
    now = stat(pid)
    return now is not None and now.born == before.born and now.state not in "ZX"


def _end(pid: int, before: ProcessStat | None) -> None:
    """Kills a process. The first one of a container ignores SIGKILL from inside, so SIGTERM follows."""
    for number in (signal.SIGKILL, signal.SIGTERM):
        deadline = time.monotonic() + 1
        if before and _is(pid, before):
            os.kill(pid, number)
        while before and _is(pid, before) and time.monotonic() < deadline:
            time.sleep(0.02)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
