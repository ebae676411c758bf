"""Prints the bounds of a roll-out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from trtspec.cli.terminal.output import out

if TYPE_CHECKING:
    from trtspec.deployment.rollout.bounds import Check


def print_checks(checks: Sequence[Check]) -> None:
    """Prints a blank line, then each bound with its value and whether it holds. Prints nothing without
    bounds."""
    if checks:
        out.result()
        rows = [(check.name, check.bound, check.found, check.verdict.value) for check in checks]
        out.table(rows, header=("bound", "is", "found", ""))
