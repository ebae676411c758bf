"""The bounds of a roll-out for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.deployment.rollout.bounds import Check


def print_checks(checks: Sequence[Check]) -> None:
    """Prints each bound with what was found and whether it holds, behind a blank line; nothing for none."""
    if checks:
        out.result()
        rows = [(check.name, check.bound, check.found, check.verdict.value) for check in checks]
        out.table(rows, header=("bound", "is", "found", ""))
