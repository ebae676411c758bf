"""A server's process on this machine, with all that it starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class Group:
    """A process in a session of its own, so that the terminal's Ctrl-C does not reach it.

    It is told to end when this process dies, however that happens. What it says goes to `log`.
    """

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str], log: Path
    ) -> None:
        with log.open("ab") as output:
            self._process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", "trtspec.deploy.die_with_parent", str(os.getpid()), *command],
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
        """Ends it at once, and whatever of its session still runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
