"""`trtspec convert`: only the checkpoints of a build."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from trtspec.cli.build import run_steps
from trtspec.cli.options import JsonOption, OutputOption, RecipeArgument
from trtspec.cli.plan import watch

EXAMPLES = (
    "trtspec convert recipe.yaml",
    "trtspec convert recipe.yaml --only draft",
    "trtspec convert recipe.yaml --verify",
)


def convert(
    recipe: RecipeArgument,
    only: Annotated[
        Literal["target", "draft"] | None, typer.Option("--only", help="Convert one of the two models.")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Prove afterwards that all ranks together are the original weights."),
    ] = False,
    output: OutputOption = None,
    json: JsonOption = False,
) -> None:
    """Convert a recipe's models to TensorRT-LLM checkpoints."""
    from trtspec.plan.plan import make_plan

    made = make_plan(recipe, {"output": output}, True, watch)
    verbs = ("calibrate", "convert", *(["verify"] if verify else []))
    names = [f"{verb} {role}" for verb in verbs for role in ("target", "draft") if only in (role, None)]
    run_steps(made, [step for step in made.steps if step.name in names], json)
