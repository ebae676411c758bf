"""API keys that commands send: from a file or a variable, because every user of the machine can read a
command line."""

from __future__ import annotations

import os
from pathlib import Path

from trtspec.base.errors import UnavailableError


def read_key(file: Path | None, variable: str | None = None) -> str | None:
    """Returns the key in the variable, or else in the file; None if neither is named.

    Raises `UnavailableError` where there is none.
    """
    if variable is not None:
        if not (found := os.environ.get(variable)):
            raise UnavailableError(variable, "is not set in the environment", "export it, or --api-key-file")
        return found
    if file is None:
        return None
    try:
        lines = file.read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(file, f"cannot be read: {error}") from None
    if not lines:
        raise UnavailableError(file, "has no API key", "write the key as its first line")
    return lines[0]
