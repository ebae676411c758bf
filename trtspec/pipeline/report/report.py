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
    """One step; `seconds` is what it took in this build, 0 for a step that was done before."""

    name: str
    summary: str
    status: Status
    seconds: float


@dataclass(frozen=True, slots=True)
class BuildFailure:
    """The reason for which a build ended early. `step` is None if none was running; `lines` are the last
    lines that it printed.
    """

    problem: str
    repair: str | None = None
    step: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildReport:
    """One build.

    Where it ended before there was a plan, `output` is None, and `made_for` and `steps` are empty.
    """

    name: str
    recipe: str
    output: str | None
    made_for: Mapping[str, str | int]
    steps: tuple[StepReport, ...]
    seconds: float
    failure: BuildFailure | None


def to_json(report: BuildReport) -> str:
    content = {"schema": SCHEMA, "ok": report.failure is None, **asdict(report)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
