"""What a build did, step by step, for people and for machines."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Literal

SCHEMA = 1
SUFFIXES = (".md", ".xml", ".json")
"""Of the files that a report can be written to."""

Status = Literal["run", "kept", "failed", "not run"]


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step; `seconds` are those of this build, 0 for a step that was done before it."""

    name: str
    summary: str
    status: Status
    seconds: float


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a build ended early; `step` is None where none was running, `lines` are what it printed last."""

    problem: str
    repair: str | None = None
    step: str | None = None
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class BuildReport:
    """One build; `steps` is empty, and `made_for` too, where it ended before there was a plan."""

    name: str
    recipe: str
    output: str | None
    made_for: Mapping[str, str | int]
    steps: tuple[StepReport, ...]
    seconds: float
    failure: Failure | None


def to_json(report: BuildReport) -> str:
    content = {"schema": SCHEMA, "ok": report.failure is None, **asdict(report)}
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"
