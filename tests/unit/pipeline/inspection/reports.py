"""Folders of models changed, and what a report says of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trtspec.base.findings import Finding, Severity
from trtspec.pipeline.inspection.report import Report

Save = Callable[..., Path]


def edit(folder: Path, *path: str, file: str = "config.json", **values: Any) -> None:
    """Replaces keys of a JSON file, within the objects that `path` names; None removes one."""
    content = json.loads((folder / file).read_text())
    inner = content
    for key in path:
        inner = inner[key]
    inner |= values
    for key in [key for key, value in values.items() if value is None]:
        del inner[key]
    (folder / file).write_text(json.dumps(content))


def said(report: Report, *, wrong: bool) -> list[str]:
    severity = Severity.ERROR if wrong else Severity.NOTE
    return [f"{found.subject}: {found.problem}" for found in report.findings if found.severity is severity]


def only(report: Report) -> Finding:
    (found,) = report.findings
    return found
