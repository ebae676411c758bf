"""Known ways to fail, recognised by what a command said."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """The pattern of what is said, what is wrong, what to do; {0} is the first group of the pattern."""

    pattern: str
    problem: str
    repair: str


def find_cause(causes: Iterable[Cause], said: str) -> tuple[str, str] | None:
    """Problem and repair of the first cause that fits; None for an unknown one."""
    for cause in causes:
        if found := re.search(cause.pattern, said):
            return cause.problem.format(*found.groups("")), cause.repair
    return None
