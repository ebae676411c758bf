"""`trtspec convert`: only the checkpoints of a build."""

from __future__ import annotations

from typing import Annotated

import typer

import trtspec
from trtspec.backends.table import runner_of
from trtspec.base.roles import Role
from trtspec.cli.terminal.engines import require_engines
from trtspec.cli.terminal.options import JsonOption, OutputOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.steps import RunSteps, tell_costs
from trtspec.pipeline.build.build import run_steps
from trtspec.pipeline.steps import calibrate
from trtspec.pipeline.steps import convert as converting

EXAMPLES = (
    "trtspec convert recipe.yaml",
    "trtspec convert recipe.yaml --only draft",
    "trtspec convert recipe.yaml --verify",
)


def convert(
    recipe: RecipeArgument,
    only: Annotated[Role | None, typer.Option("--only", help="Convert this model alone.")] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove afterwards that all ranks together are the original weights."),
    ] = False,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Convert a recipe's models to TensorRT-LLM checkpoints."""
    loaded = require_engines(recipe, "no checkpoint to convert")
    if only and only not in runner_of(loaded.recipe).engines(loaded.recipe):
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")
    made = trtspec.plan(recipe, output=output, to_run=True, progress=out.watch)
    kinds = {calibrate.KIND, converting.KIND, *([converting.VERIFY] if verify else [])}
    chosen = [step for step in made.steps if step.kind in kinds and only in (step.role, None)]
    done = run_steps(made, chosen, out.watch)
    tell_costs(made, done.steps)
    out.show(RunSteps(done), as_json=json)
