"""The file with the state of the roll-out. Its writer replaces it whole.

Each look opens its path again: in Kubernetes the path of a ConfigMap's file is a link, which leads to another
file after a change.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from trtspec.serving.errors import RolloutError
from trtspec.serving.rollout.state import RolloutState, parse

ROLLOUT = "TRTSPEC_ROLLOUT"
"""The environment variable with the path of the file, which need not exist."""
LOOK_S = 1.0
"""The seconds between two looks."""
_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class RolloutReading:
    """The content of the file: a state, or the problem with it."""

    state: RolloutState | None = None
    """None if there is no file or a problem with it."""
    problem: str = ""
    """The problem with the file, in one line; empty if there is none."""


class RolloutFile:
    """Reads the file again when it has changed. A look at an unchanged file is one system call."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._seen: object = None

    def look(self) -> RolloutReading | None:
        """Returns the content of the file if it may have changed since the last look, else None."""
        seen = self._status()
        if seen == self._seen:
            return None
        self._seen = seen
        return self._read()

    def _status(self) -> object:
        try:
            status = os.stat(self.path)
        except OSError as error:
            return error.errno
        return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size

    def _read(self) -> RolloutReading:
        try:
            with self.path.open("rb") as file:
                return RolloutReading(parse(file.read(_MOST_BYTES).decode(errors="replace")))
        except (FileNotFoundError, NotADirectoryError):
            return RolloutReading()
        except OSError as error:
            return RolloutReading(problem=f"cannot be read: {error.strerror}")
        except RolloutError as error:
            return RolloutReading(problem=str(error))
