"""`trtspec convert`: only the checkpoints of a build."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.roles import Role
from trtspec.terminal.options import JsonOption, OutputOption, RecipeArgument
from trtspec.terminal.output import out
from trtspec.terminal.steps import run_steps

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
    from trtspec.build.plan import make_plan
    from trtspec.steps import calibrate
    from trtspec.steps import convert as converting
    from trtspec.steps import verify as verifying
    from trtspec.terminal.engines import require_engines

    loaded = require_engines(recipe, "no checkpoint to convert")
    if only and only not in loaded.recipe.engines:
        raise typer.BadParameter(f"{recipe} has no {only}", param_hint="--only")
    made = make_plan(recipe, {"output": output}, out.watch, to_run=True)
    kinds = {calibrate.KIND, converting.KIND, *([verifying.KIND] if verify else [])}
    chosen = [step for step in made.steps if step.kind in kinds and only in (step.role, None)]
    run_steps(made, chosen, json=json)
