"""A server's process on this machine, with all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from trtspec.serving.triton.watching import stat

_GONE_S = 5.0


class ProcessGroup:
    """A process in a session of its own, so that the terminal's Ctrl-C does not reach it.

    It gets the signal `orphaned` when this process dies, however that happens. What it says goes to `log`.
    """

    def __init__(
        self,
        command: Sequence[str],
        folder: Path,
        environment: Mapping[str, str],
        log: Path,
        orphaned: signal.Signals = signal.SIGTERM,
    ) -> None:
        words = [str(os.getpid()), str(orphaned.value), *command]
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "trtspec.deploy.die_with_parent", *words],
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """Returns its exit status, negative for a signal; None while it runs."""
        return self._process.poll()

    def stop(self, seconds: float) -> None:
        """Tells it to end, and waits so many seconds for that."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)

    def kill(self) -> None:
        """Ends it at once, and whatever of its group still runs.

        Returns when all of that is gone, so that the memory of a GPU is free for the next; a process that a
        driver holds is not waited for longer than five seconds.
        """
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        deadline = time.monotonic() + _GONE_S
        while _runs(self._process.pid) and time.monotonic() < deadline:
            time.sleep(0.01)


def _runs(group: int) -> bool:
    """Says whether a process of a group runs, or is about to end; not one that only its parent remembers."""
    return any(_is_of(int(name), group) for name in os.listdir("/proc") if name.isdigit())


def _is_of(pid: int, group: int) -> bool:
    try:
        if os.getpgid(pid) != group:
            return False
    except ProcessLookupError:
        return False
    found = stat(pid)
    return found is not None and found.state not in "ZX"
