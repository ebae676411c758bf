"""`trtspec doctor`: what this machine has, what a recipe needs, what to do."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from trtspec.base.errors import UnavailableError
from trtspec.base.findings import Finding, Severity, as_json, errors
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out

EXAMPLES = ("trtspec doctor", "trtspec doctor recipe.yaml")

_LABELS = {Severity.OK: "ok", Severity.NOTE: "note", Severity.ERROR: "MISSING"}


def doctor(
    recipe: Annotated[
        Path | None, typer.Argument(metavar="[RECIPE]", help="What the machine is to build and serve.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what this machine has and what a recipe needs.

    The exit status is 1 if something that the recipe needs is missing.
    """
    from trtspec.pipeline.machine.doctor import examine
    from trtspec.pipeline.machine.survey import look
    from trtspec.pipeline.plan.choices import build_folder
    from trtspec.recipe.loader import load

    loaded = load(recipe) if recipe else None
    output = build_folder(loaded, {}, os.environ) if loaded else Path()
    findings = examine(look(loaded, output, _wheel()), loaded.recipe if loaded else None)
    if json:
        out.json({"recipe": str(recipe) if recipe else None, **as_json(findings)})
    else:
        _print(findings)
    if errors(findings):
        raise typer.Exit(1)


def _wheel() -> UnavailableError | None:
    from trtspec.deployment.installed_triton import find_wheel

    try:
        find_wheel()
    except UnavailableError as error:
        return error
    return None


def _print(findings: list[Finding]) -> None:
    width = max(len(finding.subject) for finding in findings)
    for finding in findings:
        out.result(f"{_LABELS[finding.severity]:7}  {finding.subject:{width}}  {finding.problem}")
        if finding.repair:
            out.result(f"{'':7}  {'':{width}}  {finding.repair}")
