"""`trtspec convert`: only the checkpoints of a build."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.base.roles import Role
from trtspec.cli.terminal.options import JsonOption, OutputOption, RecipeArgument
from trtspec.cli.terminal.output import out
from trtspec.cli.terminal.steps import run_steps

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
    from trtspec.cli.terminal.engines import require_engines
    from trtspec.pipeline.build.plan import make_plan
    from trtspec.pipeline.steps import calibrate
    from trtspec.pipeline.steps import convert as converting
    from trtspec.pipeline.steps import verify as verifying

    loaded = require_engines(recipe, "no checkpoint to convert")
    if only and only not in loaded.recipe.engines:
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")
    made = make_plan(recipe, {"output": output}, out.watch, to_run=True)
    kinds = {calibrate.KIND, converting.KIND, *([verifying.KIND] if verify else [])}
    chosen = [step for step in made.steps if step.kind in kinds and only in (step.role, None)]
    run_steps(made, chosen, json=json)
