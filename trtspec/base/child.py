"""A child process that can be asked, told to stop and waited for, with all that it starts.

`python child.py PARENT SIGNAL COMMAND…` becomes COMMAND, which ends with PARENT: a process in a session of
its own would outlive a parent that was killed by SIGKILL. The kernel sends COMMAND the SIGNAL, a number,
when PARENT dies; that setting survives the exec. The file imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

# linux/prctl.h
_PR_SET_PDEATHSIG = 1
# As large as those that NVIDIA has its containers started with: Triton copies an HTTP body of the type that
# curl sends onto the stack of a thread, so that one of 4 MB ends a server with the usual 8 MB
# (triton-inference-server/server, issue 5840).
_STACK = 64 << 20
_GONE_S = 5.0


class ChildProcess:
    """A process in a session of its own, so that the terminal's Ctrl-C does not reach it.

    What it says goes to `output`. With `orphaned` it gets that signal when this process dies, however that
    happens. It inherits the descriptors `keeps`, and with `keeps_all` every one that may be inherited.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: IO[bytes],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        orphaned: signal.Signals | None = None,
        stdin: int = subprocess.DEVNULL,
        keeps: Sequence[int] = (),
        keeps_all: bool = False,
    ) -> None:
        if orphaned is not None:
            until = (str(os.getpid()), str(orphaned.value))
            # A module of the folder that the command runs in would else be taken for Python's own.
            command = (sys.executable, "-I", "-S", __file__, *until, *command)
        self._process = subprocess.Popen(  # noqa: S603
            command,
            cwd=folder,
            env=environment,
            stdin=stdin,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=keeps,
            close_fds=not keeps_all,
            start_new_session=True,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def wait(self, seconds: float | None = None) -> int | None:
        """Returns its exit status, or None if it has not ended after `seconds`."""
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def stop(self, seconds: float) -> None:
        """Tells it to end, and waits so many seconds for that."""
        self._process.terminate()
        self.wait(seconds)

    def kill(self) -> None:
        """Ends it at once, and whatever of its group still runs; harmless if it has ended already.

        Returns when all of that is gone, so that the memory of a GPU is free for the next; a process that a
        driver holds is not waited for longer than five seconds.
        """
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _GONE_S
        while _runs(self.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _runs(group: int) -> bool:
    """Says whether a process of a group runs, or is about to end; not one that only its parent remembers."""
    return any(_is_of(name, group) for name in os.listdir("/proc") if name.isdigit())


def _is_of(pid: str, group: int) -> bool:
    try:
        state, _, its_group, *_ = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:  # It has just ended.
        return False
    return int(its_group) == group and state not in "ZX"


def _become(parent: int, number: int, command: list[str]) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    _, most = resource.getrlimit(resource.RLIMIT_STACK)
    stack = _STACK if most == resource.RLIM_INFINITY else min(_STACK, most)
    resource.setrlimit(resource.RLIMIT_STACK, (stack, most))
    # The parent may have died before the kernel was asked.
    if os.getppid() == parent:
        os.execvp(command[0], command)  # noqa: S606


if __name__ == "__main__":
    _become(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
