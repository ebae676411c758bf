"""`trtspec doctor` shows what this machine has, what a recipe needs, and what to do."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.backends.table import load
from trtspec.base.errors import TrtspecError, UnavailableError
from trtspec.base.findings import Finding, Severity, as_json, errors, ok
from trtspec.cli.terminal.options import JsonOption
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.settings import found_settings
from trtspec.deployment.triton.install import find_wheel
from trtspec.pipeline.build.plan import PlanRequest, look_here
from trtspec.pipeline.machine.doctor import examine
from trtspec.pipeline.machine.host import Host
from trtspec.pipeline.machine.survey import look
from trtspec.pipeline.plan.resolved import asked_backend, build_folder

if TYPE_CHECKING:
    from trtspec.pipeline.machine.survey import Machine
    from trtspec.recipe.loader import LoadedRecipe

EXAMPLES = ("trtspec doctor", "trtspec doctor recipe.yaml")

_LABELS = {Severity.OK: "ok", Severity.NOTE: "note", Severity.ERROR: "MISSING"}


def doctor(
    recipe: Annotated[
        Path | None,
        typer.Argument(metavar="[RECIPE]", help="The recipe that this machine is to build and serve."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Show what this machine has and what a recipe needs.

    The exit status is 1 if something that the recipe needs is missing.
    """
    loaded = load(recipe, asked_backend({}, os.environ)) if recipe else None
    output = build_folder(loaded, {}, os.environ) if loaded else Path()
    machine = look(loaded, output, _wheel())
    findings = [*examine(machine, loaded.recipe if loaded else None), found_settings()]
    if loaded and not any(state.problem for state in machine.models.values()):
        findings += _models(loaded, machine)
    out.show(ExaminedMachine(recipe, findings), as_json=json)
    if errors(findings):
        raise typer.Exit(1)


def _models(loaded: LoadedRecipe, machine: Machine) -> list[Finding]:
    """Finds what the recipe asks of its models and they do not allow, as a build would before it starts."""
    host = Host(machine.versions, machine.trtllm_build, machine.gpus)
    try:
        report = look_here(loaded, host, PlanRequest())
    except TrtspecError as error:
        return list(error.findings)
    if errors(report.findings) or report.unseen:
        return errors(report.findings)
    return [*report.alone, ok("models", "they allow what the recipe asks of them")]


def _wheel() -> UnavailableError | None:
    try:
        find_wheel()
    except UnavailableError as error:
        return error
    return None


@dataclass(frozen=True, slots=True)
class ExaminedMachine:
    """A machine beside the needs of a recipe."""

    recipe: Path | None
    findings: list[Finding]

    def tell(self) -> None:
        rows = []
        for finding in self.findings:
            rows.append((f"{_LABELS[finding.severity]:7}", finding.subject, finding.problem))
            rows += [("", "", finding.repair)] if finding.repair else []
        out.table(rows)

    def as_json(self) -> dict[str, Any]:
        return {"recipe": str(self.recipe) if self.recipe else None, **as_json(self.findings)}
