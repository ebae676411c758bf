"""The word that the server is to end, which reaches the model before Triton hears it.

Triton, told to end, takes in no request any more, which each round of the bls layout is; and it cancels none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

STOPPING = "TRTSPEC_STOPPING"
"""The variable that names a file: it appears when the server is to end, with the seconds of grace in it."""

LOOK_S = 0.1
"""So often `Stopping.look` is to be called, in seconds."""


class Stopping:
    """Calls `drain` with the seconds of grace, once."""

    def __init__(self, drain: Callable[[float], object]) -> None:
        self._drain = drain
        name = os.environ.get(STOPPING)
        self._file = Path(name) if name else None
        if self._file:
            # Of a server before this one, in the same container.
            self._file.unlink(missing_ok=True)

    def look(self) -> None:
        if self._file and (said := _read(self._file)):
            self._file = None
            self._drain(float(said))


def _read(file: Path) -> str | None:
    try:
        return file.read_text()
    except FileNotFoundError:
        return None
