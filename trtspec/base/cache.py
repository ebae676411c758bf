"""The folder in which trtspec keeps what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """`$TRTSPEC_CACHE`, else `trtspec` in the user's cache folder; the folder may not exist yet."""
    if own := os.environ.get("TRTSPEC_CACHE"):
        return Path(own).resolve()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "trtspec"
