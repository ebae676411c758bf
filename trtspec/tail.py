"""Reads what is new in a file that grows."""

from __future__ import annotations

from pathlib import Path


class Tail:
    """Reads a log while it is being written."""

    def __init__(self, file: Path) -> None:
        self._file, self._offset = file, 0

    def lines(self) -> list[str]:
        """The lines written since the last call, without blank ones; the last may be cut short."""
        with self._file.open("rb") as stream:
            stream.seek(self._offset)
            new = stream.read()
        self._offset += len(new)
        return [line for line in new.decode("utf-8", "replace").splitlines() if line.strip()]
