"""Reports the steps of a build, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

SCHEMA = 1
SUFFIXES = (".md", ".xml", ".json")
"""The suffixes of the files that a report can be written to."""

Status = Literal["run", "kept", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """The report on one step."""

    name: str
    summary: str
    status: Status
    seconds: float
    """The time that it took in this build; 0 for a step that was done before."""


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The reason for which a build ended early."""

    problem: str
    repair: str | None = None
    step: str | None = None
    """None if none was running."""
    lines: tuple[str, ...] = ()
    """The last lines that the step printed."""


@dataclass(frozen=True, slots=True)
class BuildReport:
    """The report on one build."""

    name: str
    recipe: str
    output: str | None
    """None if the build ended before there was a plan."""
    made_for: Mapping[str, str | int]
    """Empty where the build ended before there was a plan."""
    steps: tuple[StepReport, ...]
    """Empty where the build ended before there was a plan."""
    seconds: float
    failure: BuildFailure | None


def to_json(report: BuildReport) -> str:
    content = {"schema": SCHEMA, "ok": report.failure is None, **asdict(report)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
