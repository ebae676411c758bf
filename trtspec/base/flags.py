"""Tells flags from other words of a command line."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"-\.?\d")


def is_flag(word: str) -> bool:
    """True for a word that begins with `-` and is neither a negative number nor `-` alone."""
    return len(word) > 1 and word.startswith("-") and not _NUMBER.match(word)
