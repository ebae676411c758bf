"""A container's output in a file of this machine."""

from __future__ import annotations

import time
from pathlib import Path

from trtspec.backends.containers.program import Program
from trtspec.base.child import ChildProcess

# A command that fails at once is not started again before.
_AGAIN_S = 5.0


class ContainerLog:
    """Copies what a container says to the end of `file`, from its beginning on, while this process runs."""

    def __init__(self, program: Program, container_id: str, file: Path) -> None:
        self._program, self._id, self._file = program, container_id, file
        self._process = self._start()

    @property
    def is_at_work(self) -> bool:
        """True while it waits for more; it ends with the container, and when the daemon restarts."""
        if self._process.poll() is not None:
            return False
        self._seen = time.time()
        return True

    def go_on(self) -> None:
        """Starts it again where it has ended; what was said in the moment of that may be there twice."""
        if not self.is_at_work and time.monotonic() > self._begin + _AGAIN_S:
            self._process = self._start("--since", f"{self._seen:.3f}")

    def wait(self, seconds: float) -> None:
        """Waits for its end, which is that of the container."""
        self._process.wait(seconds)

    def close(self) -> None:
        self._process.kill()

    def _start(self, *since: str) -> ChildProcess:
        self._begin, self._seen = time.monotonic(), time.time()
        with self._file.open("ab") as file:
            return self._program.start(("logs", "--follow", *since, self._id), file)
