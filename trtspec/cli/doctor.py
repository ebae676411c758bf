"""`trtspec doctor`: what this machine has, what a recipe needs, what to do."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import JsonOption
from trtspec.cli.output import out
from trtspec.errors import UnavailableError

if TYPE_CHECKING:
    from trtspec.plan.doctor import Finding

EXAMPLES = ("trtspec doctor", "trtspec doctor recipe.yaml")

_LABELS = {"ok": "ok", "note": "note", "missing": "MISSING"}


def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE]", help="What the machine is to build and serve.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what this machine has and what a recipe needs.

    The exit status is 1 if something that the recipe needs is missing.
    """
    from trtspec.plan.doctor import examine
    from trtspec.plan.machine import look
    from trtspec.plan.resolve import build_folder
    from trtspec.recipe.loader import load

    loaded = load(recipe) if recipe else None
    output = build_folder(loaded, {}, os.environ) if loaded else Path()
    findings = examine(look(loaded, output, _wheel()), loaded.recipe if loaded else None)
    missing = [finding for finding in findings if finding.state == "missing"]
    if json:
        content = {"recipe": str(recipe) if recipe else None, "ok": not missing}
        out.json({**content, "findings": [asdict(finding) for finding in findings]})
    else:
        _print(findings)
    if missing:
        raise typer.Exit(1)


def _wheel() -> UnavailableError | None:
    from trtspec.deploy.wheel import find_wheel

    try:
        find_wheel()
    except UnavailableError as error:
        return error
    return None


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        out.result(f"{_LABELS[finding.state]:7}  {finding.subject:{width}}  {finding.found}")
        if finding.repair:
            out.result(f"{'':7}  {'':{width}}  {finding.repair}")
