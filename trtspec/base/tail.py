"""Reads what is new in a file that grows."""

from __future__ import annotations

import os
import re
from pathlib import Path


class Tail:
    """Reads a log while it is being written; the file need not be there yet, and may be begun anew."""

    def __init__(self, file: Path) -> None:
        self._file, self.offset = file, 0
        self._left = b""

    def lines(self) -> list[str]:
        """The lines that have ended since the last call, without blank ones."""
        new = self._left + self._read()
        end = max(new.rfind(b"\n"), new.rfind(b"\r")) + 1
        self._left = new[end:]
        return _split(new[:end])

    def rest(self) -> list[str]:
        """The lines since the last call, also one that has not ended; there is to be no further call."""
        return _split(self._left + self._read())

    def _read(self) -> bytes:
        try:
            with self._file.open("rb") as stream:
                if stream.seek(0, os.SEEK_END) < self.offset:
                    self.offset = 0
                stream.seek(self.offset)
                new = stream.read()
        except FileNotFoundError:
            return b""
        self.offset += len(new)
        return new


def _split(text: bytes) -> list[str]:
    # JSON may hold U+2028 and its like, at which str.splitlines would cut it.
    return [line for line in re.split("[\r\n]", text.decode("utf-8", "replace")) if line.strip()]


def last_bytes(file: Path, most: int, begin: int = 0) -> str:
    """Returns the end of a log, of at most so many bytes, but nothing from before `begin`.

    A log that is shorter than that was begun anew, and counts whole; one that somebody has removed is empty.
    """
    try:
        with file.open("rb") as stream:
            size = stream.seek(0, os.SEEK_END)
            stream.seek(max(begin if begin <= size else 0, size - most))
            return stream.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
