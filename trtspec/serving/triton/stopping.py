"""The stop of the server, which the model learns of before Triton does.

Once Triton stops, it takes no more requests, so the rounds of the bls layout, which are requests, would fail.
It also cancels no request.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

STOPPING = "TRTSPEC_STOPPING"
"""The environment variable with the path of a file that appears when the server is to stop.

The file contains the seconds of grace.
"""

LOOK_S = 0.1
"""The seconds between two calls of `Stopping.look`."""


class Stopping:
    """Calls `drain` with the seconds of grace once the file appears."""

    def __init__(self, drain: Callable[[float], object]) -> None:
        self._drain = drain
        name = os.environ.get(STOPPING)
        self._file = Path(name) if name else None
        if self._file:
            # An earlier server in the same container may have left one.
            self._file.unlink(missing_ok=True)

    def look(self) -> None:
        """Checks for the file; it must be called periodically."""
        if self._file and (grace_s := _read(self._file)):
            self._file = None
            self._drain(float(grace_s))


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
