"""Defines findings about a recipe, a pair, a folder or a machine, and how much each matters."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, asdict, dataclass
from enum import Enum
from typing import Any


class Severity(str, Enum):
    """The weight of a finding: an `ERROR` must be mended, a `NOTE` need not be, `OK` is as it should be."""

    OK = "ok"
    NOTE = "note"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was found."""

    subject: str
    """Empty if the problem is with the whole of what was looked at."""
    problem: str
    repair: str | None = None
    _: KW_ONLY
    severity: Severity = Severity.ERROR
    effect: str | None = None
    """Says what follows from the problem, if `problem` does not."""
    line: int | None = None
    """The 1-based line of a recipe."""

    @property
    def words(self) -> str:
        """The finding in one line, without its repair."""
        effect = f"; {self.effect}" if self.effect else ""
        return f"{self.subject}: {self.problem}{effect}"


def ok(subject: str, found: str) -> Finding:
    """A finding of something that is as it should be."""
    return Finding(subject, found, severity=Severity.OK)


def note(subject: str, problem: str, repair: str | None = None, *, effect: str | None = None) -> Finding:
    """A finding that need not be mended."""
    return Finding(subject, problem, repair, severity=Severity.NOTE, effect=effect)


def errors(findings: Iterable[Finding]) -> list[Finding]:
    """The findings that must be mended."""
    return [finding for finding in findings if finding.severity is Severity.ERROR]


def as_json(findings: Iterable[Finding]) -> dict[str, Any]:
    """Returns the JSON that commands print of findings: `ok`, false for an error, and every field of each."""
    found = list(findings)
    return {"ok": not errors(found), "findings": [asdict(finding) for finding in found]}
