"""The watchdog of a model's process, which ends the server when the process cannot serve any more.

Triton does not notice the end of a Python model's process: the model's requests wait for ever, and the server
stays ready. So each such process has a child, `watching.py`, that lives as long as it does.
"""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

log = logging.getLogger(__name__)

BEAT_S = 1.0
"""The seconds between two calls of `Watchdog.beat`."""

_WATCHING = Path(__file__).with_name("watching.py")


class Watchdog:
    """Watches this process, which runs `model` and whose parent is the server.

    It ends the server if this process dies or is stopped before `close`, or if the beats stop for a long
    time. A child that has ended is replaced at the next beat. Any thread may call the methods.
    """

    def __init__(self, model: str) -> None:
        # An embedded Python may not know its executable.
        python = sys.executable or shutil.which("python3") or "python3"
        # With the standard library alone it starts in 20 ms and takes 8 MB.
        self._command = [python, "-I", "-S", str(_WATCHING), model, str(os.getpid()), str(os.getppid())]
        self._lock = threading.Lock()
        self._begin()

    def beat(self) -> None:
        """Reports that the loop still runs."""
        self._report("beat")

    def give_up(self, reason: str) -> None:
        """Ends the server after a second for the last responses; `reason` goes to its log."""
        self._report(f"failed {reason}")

    def close(self) -> None:
        """Reports that this process ends as planned. No beat may follow."""
        self._report("close")
        os.close(self._pipe)
        self._child.wait()

    def _begin(self) -> None:
        end, self._pipe = os.pipe()
        # The loop that serves sends the beats, so they must not block.
        os.set_blocking(self._pipe, False)
        self._child = subprocess.Popen(self._command, stdin=end)  # noqa: S603
        os.close(end)

    def _report(self, line: str) -> None:
        report = f"{' '.join(line.split())}\n".encode()
        with self._lock:
            try:
                os.write(self._pipe, report)
            except OSError:
                log.warning("the watchdog no longer answers, so another one starts")
                os.close(self._pipe)
                self._child.kill()
                self._child.wait()
                self._begin()
                os.write(self._pipe, report)
