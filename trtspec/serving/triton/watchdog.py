"""The watchdog of a model's process, which ends the server when the process cannot serve any more.

Triton does not notice the end of a Python model's process: the model's requests wait for ever, and the server
stays ready. So each such process has a child of its own, `watching.py`, that lives as long as it does.
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
    """Watches this process from here on, as the process of `model`; its parent is the server.

    It ends the server when this process dies or is stopped before `close`, or when no `beat` follows the last
    one for a long time. A child that has ended itself is replaced at the next beat. All methods may be called
    on any thread.
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
        self._say("beat")

    def give_up(self, reason: str) -> None:
        """Ends the server after a second, in which the last responses leave; `reason` goes to its log."""
        self._say(f"failed {reason}")

    def close(self) -> None:
        """Reports that this process ends as it should; no beat may follow."""
        self._say("close")
        os.close(self._pipe)
        self._child.wait()

    def _begin(self) -> None:
        end, self._pipe = os.pipe()
        # A beat is sent from the loop that serves, so it must not block.
        os.set_blocking(self._pipe, False)
        self._child = subprocess.Popen(self._command, stdin=end)  # noqa: S603
        os.close(end)

    def _say(self, line: str) -> None:
        said = f"{' '.join(line.split())}\n".encode()
        with self._lock:
            try:
                os.write(self._pipe, said)
            except OSError:
                log.warning("the watchdog no longer answers, so another one starts")
                os.close(self._pipe)
                self._child.kill()
                self._child.wait()
                self._begin()
                os.write(self._pipe, said)
